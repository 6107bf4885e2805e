//! Bookings of the reference, which nobody can be asked about, among replicas of ours that heard different parts of
//! them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    fake::{Publisher, Server, live, register, slow_way_to, wait_for_live},
    hostile::selector_with,
    program::{Selector, reference::ports, wait_for},
};

/// Two of ours that follow each other; what the first is asked takes `delay`.
fn pair(directory: &std::path::Path, delay: Duration) -> (Selector, Selector, (Server, Arc<AtomicU64>)) {
    let port = ports::free();
    let (way, held) = slow_way_to(([127, 0, 0, 1], port).into(), delay);
    let sync = [ports::free(), ports::free()].map(|port| port.to_string());
    let first = selector_with(port, directory, &["--replica-sync-port", &sync[0], "--advertise-url", &way.url()]);
    let second = selector_with(0, directory, &["--replica-sync-port", &sync[1]]);
    register(&first, &format!("tcp://127.0.0.1:{}", sync[1]));
    register(&second, &format!("tcp://127.0.0.1:{}", sync[0]));
    (first, second, (way, held))
}

/// The second, which does not follow the reference yet, takes a booking from the first; its end passes it by while the
/// answer is on its way.
#[test]
fn a_booking_of_the_reference_ends_on_a_late_joiner_that_missed_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second, (_way, held)) = pair(directory.path(), Duration::from_millis(1_500));
    let reference = Publisher::new().followed_by(&first);
    // A booking that lives until the second has asked for it, which the answer shows alive.
    let ids: Vec<String> = (0..8).map(|at| format!("b{at}")).collect();
    ids.iter().for_each(|id| reference.book(id));
    wait_for_live(&first, 8);
    // The first has answered, and the answer is under way, when they end.
    wait_for("an answer", || (held.load(Ordering::Relaxed) > 0).then_some(()));
    ids.iter().for_each(|id| reference.free(id));
    wait_for_live(&first, 0);
    let start = std::time::Instant::now();
    wait_for("the bookings to come late", || (live(&second) > 0).then_some(()));
    register(&second, &reference.endpoint);
    reference.wait_for_subscriber();
    wait_for("both without them", || (live(&second) == 0 && live(&first) == 0).then_some(()));
    println!("bookings that outlived their end were gone after {:?}", start.elapsed());
    // And they do not come back.
    for at in 0..3 {
        reference.book(&format!("later-{at}"));
        [&first, &second].iter().for_each(|selector| wait_for_live(selector, 1));
        reference.free(&format!("later-{at}"));
        [&first, &second].iter().for_each(|selector| wait_for_live(selector, 0));
    }
}

/// The same under steady traffic of the reference, which changes the digests of every beacon.
#[test]
fn what_was_missed_of_the_reference_is_found_under_traffic() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second, _way) = pair(directory.path(), Duration::ZERO);
    // Two ends of one reference, of which the second loses an end.
    let to_first = Publisher::new().followed_by(&first);
    let mut to_second = Publisher::new().followed_by(&second);
    to_second.router_id = to_first.router_id;
    let both = [&to_first, &to_second];
    both.iter().for_each(|end| end.book("x"));
    wait_for_live(&first, 1);
    wait_for_live(&second, 1);
    to_first.free("x");
    let mut at = 0;
    wait_for("the booking that ended elsewhere to end", || {
        both.iter().for_each(|end| end.book(&format!("traffic-{at}")));
        std::thread::park_timeout(Duration::from_millis(2));
        both.iter().for_each(|end| end.free(&format!("traffic-{at}")));
        at += 1;
        (live(&first) == 0 && live(&second) == 0).then_some(())
    });
}
