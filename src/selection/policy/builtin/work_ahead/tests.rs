//! `work-ahead`: its terms, and its search against the whole table.

use std::collections::BTreeSet;

use super::{
    super::testing::{self, World, ask, one_of, seeds},
    *,
};
use crate::selection::{identity::WorkerWithDpRank, moment::Moment};

type Fleet = testing::Fleet<WorkAhead>;

const ACCOUNTING: CacheWeights = CacheWeights { host: 0.75, disk: 0.25 };

fn settings(form: Option<WorkForm>, overlay: Overlay) -> WorkAheadSettings {
    let Parameters { gamma, kappa, prefill_rate, .. } = Parameters::default();
    let speeds = [("a".to_owned(), 2.0), ("b".to_owned(), 0.25)].into();
    WorkAheadSettings { work: Arc::new(WorkSpec { gamma, kappa, prefill_rate, form, speeds }), overlay }
}

fn fleet(form: Option<WorkForm>, overlay: Overlay, workers: u64) -> Fleet {
    let policy = WorkAhead::new(settings(form, overlay), ACCOUNTING, 16, true, None);
    let mut fleet = Fleet::with_policy(policy, 16);
    (1..=workers).for_each(|worker| fleet.facts(worker, |facts| facts.total_kv_blocks = Some(100)));
    fleet
}

fn at(seconds: f64) -> Moment {
    Moment((seconds * 1e9) as u64)
}

/// The cost of one worker for a prompt of `tokens` that shares nothing, at a time.
fn cost_at(fleet: &mut Fleet, worker: u64, tokens: u64, now: f64) -> f64 {
    let mut ask = ask(tokens);
    ask.allowed = Some(BTreeSet::from([worker]));
    let request = ask.request(&fleet.matches, at(now));
    fleet.policy.pick(&request, &mut fleet.load, &mut fleet.rng).unwrap().cost
}

fn rank(worker: u64) -> WorkerWithDpRank {
    WorkerWithDpRank::new(worker, 0)
}

#[test]
fn the_cost_is_work_ahead_and_own_tokens_with_prices() {
    let mut fleet = fleet(Some(WorkForm::Rate), Overlay::Never, 2);
    fleet.cached(2, 4, 2, 0, 0);
    let ask = ask(160);
    // Nothing ahead: own tokens. Worker 2: 4 blocks on the device and 2 in host memory at 0.75.
    assert_eq!(fleet.costs(&ask), [160.0, 160.0 - 16.0 * 5.5]);
    // 25 of 100 blocks in use, one request.
    fleet.book(1, &(0..25).collect::<Vec<u64>>(), 1000);
    let expected = (1000.0 + 160.0 * 1.02) * 1.25;
    assert!((fleet.cost(&ask, 1) - expected).abs() < 1e-9);
    assert_eq!(fleet.winner(&ask), 2);
    // A full hit still computes one token.
    fleet.cached(1, 10, 0, 0, 0);
    assert!((fleet.cost(&ask, 1) - (1000.0 + 1.02) * 1.25).abs() < 1e-9);
}

#[test]
fn speeds_of_taints_multiply() {
    let mut fleet = fleet(None, Overlay::Never, 0);
    for (worker, taints) in [(1, vec![]), (2, vec!["a"]), (3, vec!["a", "b", "c"])] {
        fleet.facts(worker, |facts| facts.taints = taints.into_iter().map(str::to_owned).collect());
    }
    assert_eq!(fleet.costs(&ask(160)), [160.0, 80.0, 320.0]);
}

#[test]
fn events_take_off_the_blocks_they_tell_of() {
    let mut fleet = fleet(None, Overlay::Never, 1);
    fleet.load.set_event_flow(rank(1), true);
    let sequence: Vec<u64> = (500..510).collect();
    // 170 tokens: ten complete blocks; the rest is never told of.
    let booking = fleet.book(1, &sequence, 170);
    let ahead = |fleet: &mut Fleet| cost_at(fleet, 1, 16, 0.0) / 1.1 - 16.0 * 1.02;
    let about = |got: f64, wanted: f64| assert!((got - wanted).abs() < 1e-9, "{got} {wanted}");
    about(ahead(&mut fleet), 160.0);
    fleet.load.stored(rank(1), &sequence[..3]);
    about(ahead(&mut fleet), 112.0);
    // Again, out of order, of somebody else, and one lost: blocks 3 to 5 were never told of.
    fleet.load.stored(rank(1), &sequence[1..3]);
    fleet.load.stored(rank(1), &[7, 8, 9]);
    about(ahead(&mut fleet), 112.0);
    fleet.load.stored(rank(1), &sequence[6..8]);
    about(ahead(&mut fleet), 32.0);
    // Time alone does nothing.
    about(cost_at(&mut fleet, 1, 16, 50.0) / 1.1 - 16.0 * 1.02, 32.0);
    assert!(fleet.load.prefill_complete(booking, at(1.0)));
    about(ahead(&mut fleet), 0.0);
    assert!(fleet.load.free(booking, at(2.0)));
    about(cost_at(&mut fleet, 1, 16, 2.0), 16.0);
    fleet.load.check();
}

#[test]
fn one_stored_block_serves_every_prompt_that_waits_for_it() {
    let mut fleet = fleet(None, Overlay::Never, 1);
    fleet.load.set_event_flow(rank(1), true);
    let one: Vec<u64> = (1..=8).collect();
    let other: Vec<u64> = (1..=4).chain(20..24).collect();
    let work = fleet.load.keep_work(&fleet.policy.settings.work, at(0.0));
    fleet.book(1, &one, 128);
    fleet.book(1, &other, 128);
    fleet.load.stored(rank(1), &one[..5]);
    assert_eq!(fleet.load.work(work).ahead(0), (3 * 16 + 4 * 16, WorkForm::Events));
}

#[test]
fn the_rate_takes_off_what_the_oldest_prefill_has_had_time_for() {
    let mut fleet = fleet(Some(WorkForm::Rate), Overlay::Never, 1);
    let first = fleet.book(1, &[], 8000);
    fleet.book(1, &[], 800);
    let ahead = |fleet: &mut Fleet, now| cost_at(fleet, 1, 16, now) - 16.0 * 1.04;
    let about = |got: f64, wanted: f64| assert!((got - wanted).abs() < 1e-6, "{got} {wanted}");
    about(ahead(&mut fleet, 0.5), 4800.0);
    // Never more than 95 % of it.
    about(ahead(&mut fleet, 5.0), 800.0 + 400.0);
    assert!(fleet.load.prefill_complete(first, at(5.0)));
    // 8,000 tokens took 5 s: (8,000 * 4 * 0.998 + 8,000) / (4 * 0.998 + 5) a second from now on.
    let rate: f64 = (32_000.0 * 0.998 + 8000.0) / (4.0 * 0.998 + 5.0);
    about(ahead(&mut fleet, 5.1), (800.0 - 0.1 * rate).ceil());
}

#[test]
fn without_notices_and_events_a_clock_counts() {
    let mut fleet = fleet(None, Overlay::Never, 1);
    for _ in 0..10 {
        let booking = fleet.book(1, &[1, 2], 40);
        assert!(fleet.load.free(booking, at(0.0)));
    }
    fleet.book(1, &[1, 2], 16_000);
    let work = fleet.load.keep_work(&fleet.policy.settings.work, at(0.0));
    assert_eq!(fleet.load.work(work).ahead(0).1, WorkForm::Rate, "kept from now on only");
    for _ in 0..10 {
        let booking = fleet.book(1, &[1, 2], 40);
        assert!(fleet.load.free(booking, at(0.0)));
    }
    let ahead = |fleet: &mut Fleet, now| cost_at(fleet, 1, 16, now) / 1.02 - 16.0 * 1.02;
    // At 8,000 a second; what ended takes no time.
    for (now, left) in [(0.0, 16_000.0), (1.0, 8000.0), (2.0, 0.0), (3.0, 0.0)] {
        let got = ahead(&mut fleet, now);
        assert!((got - left).abs() < 1.0, "{got} {left}");
    }
}

#[test]
fn a_booking_that_ended_does_not_hold_the_clock() {
    let mut fleet = fleet(Some(WorkForm::Clock), Overlay::Never, 1);
    fleet.load.keep_work(&fleet.policy.settings.work, at(0.0));
    // What a client may claim, for years at any rate.
    let absurd = fleet.book(1, &[], 1 << 40);
    assert!(fleet.load.free(absurd, at(0.0)));
    fleet.book(1, &[], 8000);
    let ahead = |fleet: &mut Fleet, now| cost_at(fleet, 1, 16, now) - 16.0 * 1.02;
    for (now, left) in [(0.0, 8000.0), (0.5, 4000.0), (1.0, 0.0)] {
        let got = ahead(&mut fleet, now);
        assert!((got - left).abs() < 1.0, "{got} {left}");
    }
}

#[test]
fn costs_are_numbers_whatever_the_taints() {
    for factor in [1e-3, 1e3] {
        let taints: Vec<String> = (0..200).map(|taint| format!("t{taint}")).collect();
        let speeds = taints.iter().map(|taint| (taint.clone(), factor)).collect();
        let spec = WorkSpec { speeds, ..(*settings(None, Overlay::Auto).work).clone() };
        let settings = WorkAheadSettings { work: Arc::new(spec), overlay: Overlay::Auto };
        let mut fleet = Fleet::with_policy(WorkAhead::new(settings, ACCOUNTING, 16, true, None), 16);
        fleet.facts(1, |facts| facts.taints = taints.into_iter().collect());
        let cost = fleet.pick(&ask(160)).unwrap().cost;
        assert!(cost.is_finite() && cost > 0.0, "{factor}: {cost}");
    }
}

#[test]
fn work_that_no_policy_asks_for_any_more_is_let_go() {
    let mut fleet = fleet(Some(WorkForm::Clock), Overlay::Never, 2);
    fleet.pick(&ask(16)).unwrap();
    let form = |fleet: &mut Fleet| fleet.load.reported_work(at(0.0)).map(|work| work.ahead(0).1);
    assert_eq!((form(&mut fleet), fleet.load.works().len()), (Some(WorkForm::Clock), 1));
    // Another policy of the kind, and one beside it.
    fleet.load.retire_work();
    let shadow = settings(Some(WorkForm::Clock), Overlay::Never);
    fleet.policy.settings = settings(Some(WorkForm::Rate), Overlay::Never);
    for _ in 0..2 {
        fleet.pick(&ask(16)).unwrap();
        fleet.load.keep_work(&shadow.work, at(0.0));
        assert_eq!((form(&mut fleet), fleet.load.works().len()), (Some(WorkForm::Rate), 2));
    }
    // The one beside it leaves.
    fleet.load.retire_work();
    for _ in 0..2 {
        fleet.pick(&ask(16)).unwrap();
        assert_eq!(form(&mut fleet), Some(WorkForm::Rate));
    }
    assert_eq!(fleet.load.works().len(), 1);
}

#[test]
fn reports_are_of_now_though_nobody_selects() {
    let mut fleet = fleet(None, Overlay::Auto, 2);
    fleet.load.set_event_flow(rank(1), true);
    fleet.load.keep_work(&fleet.policy.settings.work, at(0.0));
    let told = fleet.book(1, &[1, 2], 32);
    assert!(fleet.load.prefill_complete(told, at(0.0)));
    fleet.book(2, &[], 8000);
    let mut report = |now| {
        let work = fleet.load.reported_work(at(now)).unwrap();
        (work.ahead(1).0, work.unheard())
    };
    assert_eq!([report(0.0), report(1.0), report(3.0)], [(8000, 1), (400, 1), (400, 2)]);
}

#[test]
fn late_events_are_noticed_and_forgiven() {
    let mut fleet = fleet(None, Overlay::Auto, 1);
    fleet.load.set_event_flow(rank(1), true);
    let form = |fleet: &mut Fleet, now: f64| {
        let work = fleet.load.keep_work(&fleet.policy.settings.work, at(now));
        let work = fleet.load.work(work);
        (work.ahead(0).1, work.is_unheard(0), work.unheard())
    };
    assert_eq!(form(&mut fleet, 0.0), (WorkForm::Events, false, 0));
    let booking = fleet.book(1, &[1, 2, 3], 48);
    assert!(fleet.load.prefill_complete(booking, at(1.0)));
    assert_eq!(form(&mut fleet, 2.9), (WorkForm::Events, false, 0));
    assert_eq!(form(&mut fleet, 3.1), (WorkForm::Rate, true, 1));
    // They come, late: still late. The next ones are in time.
    fleet.load.stored(rank(1), &[1, 2, 3]);
    assert_eq!(form(&mut fleet, 3.2), (WorkForm::Rate, true, 1));
    let booking = fleet.book(1, &[1, 2, 4], 16);
    assert!(fleet.load.prefill_complete(booking, at(4.0)));
    fleet.load.stored(rank(1), &[4]);
    assert_eq!(form(&mut fleet, 4.0), (WorkForm::Events, false, 0));
    fleet.load.set_event_flow(rank(1), false);
    assert_eq!(form(&mut fleet, 4.0), (WorkForm::Rate, true, 1));
    fleet.load.check();
}

#[test]
fn own_bookings_stand_in_for_events_that_are_missing() {
    for (overlay, flows, wanted) in [
        (Overlay::Auto, false, 16.0),
        (Overlay::Auto, true, 80.0),
        (Overlay::Always, true, 16.0),
        (Overlay::Never, false, 80.0),
    ] {
        let mut fleet = fleet(Some(WorkForm::Rate), overlay, 1);
        fleet.load.set_event_flow(rank(1), flows);
        let booking = fleet.book(1, &[1, 2, 3, 4], 64);
        assert!(fleet.load.prefill_complete(booking, at(0.0)));
        let mut ask = ask(80);
        ask.sequence = vec![1, 2, 3, 4, 5];
        let got = fleet.cost(&ask, 1);
        assert!((got - wanted * 1.02 * 1.04).abs() < 1e-9, "{overlay:?} {flows} {got}");
    }
}

#[test]
fn explanations_add_up_and_name_the_form() {
    let mut fleet = fleet(None, Overlay::Auto, 3);
    fleet.load.set_event_flow(rank(2), true);
    fleet.book(1, &[1, 2, 3], 48);
    fleet.book(2, &[1, 2, 3], 48);
    let mut ask = ask(96);
    ask.explain = true;
    ask.constraints.preferred_taints.insert("a".to_owned(), 1.0);
    fleet.facts(3, |facts| facts.taints = ["a".to_owned()].into());
    let explanation = fleet.pick(&ask).unwrap().explanation.unwrap();
    assert_eq!(explanation.policy, "work-ahead");
    let first_terms: Vec<_> = explanation.candidates.iter().map(|row| row.cost_terms[0].clone()).collect();
    assert_eq!(
        first_terms,
        [("ahead_by_rate".into(), 48.0), ("ahead_by_events".into(), 48.0), ("ahead_by_rate".into(), 0.0)]
    );
    for row in &explanation.candidates {
        let sum: f64 = row.cost_terms.iter().map(|(_, term)| term).sum();
        assert!((sum - row.cost.unwrap()).abs() < 1e-9, "{row:?}");
    }
    assert_eq!(fleet.winner(&ask), 3);
}

#[test]
fn a_shipped_instance_reads_its_parameters() {
    for (yaml, error) in [
        ("{gamma: -1}", "gamma must be from 0 to 1000000"),
        ("{kappa: .inf}", "kappa must be from 0 to 1000000"),
        ("{prefill_rate: 0}", "prefill_rate must be from 1 to 1000000000"),
        ("{speeds: {h100: 0}}", "speeds: the factor of \"h100\" must be from 0.001 to 1000"),
    ] {
        let parameters: Parameters = serde_saphyr::from_str(yaml).unwrap();
        let refused = factory(parameters).err().map(|error| error.to_string());
        assert!(refused.as_deref().is_some_and(|text| text.contains(error)), "{yaml}: {refused:?}");
    }
    let parameters: Parameters = serde_saphyr::from_str("{progress: clock, overlay: never}").unwrap();
    assert_eq!((parameters.progress, parameters.overlay), (Progress::Clock, Overlay::Never));
    assert!(serde_saphyr::from_str::<Parameters>("{gama: 1}").is_err());
}

fn random_policy(rng: &mut fastrand::Rng, block_size: u32) -> WorkAhead {
    let spec = WorkSpec {
        gamma: one_of(rng, &[0.0, 0.02, 0.02, 1.0]),
        kappa: one_of(rng, &[0.0, 1.0, 1.0, 5.0]),
        prefill_rate: one_of(rng, &[1.0, 8000.0]),
        form: one_of(rng, &[None, None, Some(WorkForm::Events), Some(WorkForm::Rate), Some(WorkForm::Clock)]),
        speeds: if rng.bool() { [("a".to_owned(), 2.0), ("b".to_owned(), 0.3)].into() } else { BTreeMap::new() },
    };
    let overlay = one_of(rng, &[Overlay::Auto, Overlay::Always, Overlay::Never]);
    let settings = WorkAheadSettings { work: Arc::new(spec), overlay };
    WorkAhead::new(settings, ACCOUNTING, block_size, true, None)
}

/// The least cost and its ranks from the whole table; `None` when nobody is eligible.
fn cheapest_of_all(
    fleet: &mut Fleet,
    ask: &testing::Ask,
    now: Moment,
) -> Result<(f64, BTreeSet<Slot>), SelectionError> {
    let request = ask.request(&fleet.matches, now);
    let candidates = eligibility::candidates(&request, &fleet.load, true)?;
    let at = fleet.load.keep_work(&fleet.policy.settings.work, now);
    let mut path = Vec::new();
    fleet.load.walk(request.sequence, &mut path);
    let pricing = Pricing {
        request: &request,
        load: &fleet.load,
        work: fleet.load.work(at),
        path: &path,
        accounting: ACCOUNTING,
        block_size: fleet.policy.block_size,
        overlay: fleet.policy.settings.overlay,
    };
    let rows = scan::table(&pricing, &candidates);
    let least = rows.iter().map(|row| row.cost).fold(f64::INFINITY, f64::min);
    let tied: BTreeSet<Slot> = rows.iter().filter(|row| row.cost == least).map(|row| row.slot).collect();
    if tied.is_empty() { Err(eligibility::nobody()) } else { Ok((least, tied)) }
}

/// An explained pick chooses alike, and its terms add up.
fn check_explanation(
    fleet: &mut Fleet,
    ask: &testing::Ask,
    now: Moment,
    cost: f64,
    tied: &BTreeSet<Slot>,
    rng: &mut fastrand::Rng,
) {
    let ask = testing::Ask { explain: true, ..ask.clone() };
    let picked = fleet.policy.pick(&ask.request(&fleet.matches, now), &mut fleet.load, rng).unwrap();
    assert_eq!(picked.cost.to_bits(), cost.to_bits());
    assert!(tied.contains(&picked.slot));
    let explanation = picked.explanation.unwrap();
    assert_eq!(explanation.ties, tied.len() as u64);
    for row in &explanation.candidates {
        assert_eq!(row.cost.is_some(), row.verdict == "eligible", "{row:?}");
        let Some(cost) = row.cost else { continue };
        let largest = row.cost_terms.iter().map(|(_, term)| term.abs()).fold(cost, f64::max);
        let sum: f64 = row.cost_terms.iter().map(|(_, term)| term).sum();
        assert!((sum - cost).abs() <= largest * 1e-9, "{row:?}");
    }
}

#[test]
fn picks_equal_the_whole_table() {
    for seed in seeds(400) {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let mut world = World::new(rng, random_policy);
        if rng.bool() {
            for worker in 1..=world.workers {
                let total_kv_blocks = Some(rng.u64(0..200));
                world.fleet.facts(worker, |facts| facts.total_kv_blocks = total_kv_blocks);
            }
        }
        for step in 0..60 {
            for _ in 0..rng.u32(0..6) {
                world.work(rng);
            }
            if rng.bool() {
                let rank = rank(rng.u64(1..=world.workers));
                let chain = rng.u64(0..4) << 32;
                let blocks = rng.u64(0..20);
                world.fleet.load.stored(rank, &(chain + blocks..chain + 2 * blocks).collect::<Vec<u64>>());
                world.fleet.load.set_event_flow(rank, rng.bool());
            }
            let ask = world.random_ask(rng);
            world.random_matches(rng, ask.sequence.len() as u32);
            let now = world.now;
            let fleet = &mut world.fleet;
            // Ranks that are due are looked at here; the pick at the same time finds none.
            for _ in 0..8 {
                fleet.load.keep_work(&fleet.policy.settings.work, now);
            }
            let wanted = cheapest_of_all(fleet, &ask, now);
            if let Ok((cost, tied)) = &wanted {
                check_explanation(fleet, &ask, now, *cost, tied, rng);
            }
            let request = ask.request(&fleet.matches, now);
            let got = fleet.policy.pick(&request, &mut fleet.load, rng).map(|picked| (picked.cost, picked.slot));
            match (wanted, got) {
                (Err(wanted), Err(got)) => assert_eq!(got, wanted, "seed {seed} step {step}"),
                (Ok((cost, tied)), Ok((got, slot))) => {
                    assert_eq!(got.to_bits(), cost.to_bits(), "seed {seed} step {step}: {got} {cost}");
                    assert!(tied.contains(&slot), "seed {seed} step {step}");
                }
                (wanted, got) => panic!("seed {seed} step {step}: {got:?} instead of {wanted:?}"),
            }
        }
        world.fleet.load.check();
        for booking in std::mem::take(&mut world.live) {
            assert!(world.fleet.load.free(booking, world.now));
        }
        world.fleet.load.check();
    }
}

#[test]
fn ties_are_drawn_evenly() {
    let mut fleet = fleet(None, Overlay::Auto, 60);
    for worker in 1..=20 {
        fleet.book(worker, &[], 100);
    }
    let mut counts = vec![0u32; 61];
    for _ in 0..8000 {
        counts[fleet.winner(&ask(64)) as usize] += 1;
    }
    assert!(counts[..=20].iter().all(|&count| count == 0));
    assert!(counts[21..].iter().all(|&count| (120..=290).contains(&count)), "{counts:?}");
}

#[test]
fn a_pick_among_many_looks_at_few() {
    let mut fleet = fleet(None, Overlay::Auto, 3000);
    let rng = &mut fastrand::Rng::with_seed(5);
    for id in 0..6000 {
        fleet.book(rng.u64(1..=3000), &[id], rng.u64(1..4000));
    }
    let mut most = 0;
    for _ in 0..200 {
        fleet.pick(&ask(16 * rng.u64(1..300))).unwrap();
        most = most.max(fleet.policy.scratch.trace.looked_at);
    }
    assert!(most < 100, "{most}");
}
