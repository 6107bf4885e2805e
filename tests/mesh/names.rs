//! A peer that is followed by name: what the name stands for may change.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use super::{
    fake::{Publisher, register, wait_for_live},
    hostile::{add_worker, selector},
    program::{Program, Selector, command, reference::ports},
};

/// The command in a mount namespace of its own, in which the file `hosts` is `/etc/hosts`.
fn with_hosts(hosts: &Path, inner: &Command) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""]);
    command.arg(hosts).arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

#[test]
fn a_peer_whose_name_moves_to_another_address_is_followed_there() {
    let directory = tempfile::tempdir().unwrap();
    let hosts = directory.path().join("hosts");
    let point_to =
        |address: &str| std::fs::write(&hosts, format!("127.0.0.1 localhost\n{address} peer.test\n")).unwrap();
    point_to("127.0.0.2");
    let allowed = with_hosts(&hosts, &Command::new("true")).status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("left out: this machine allows no mount namespaces");
        return;
    }

    let sync_port = ports::free().to_string();
    let words = [
        "selector",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--replica-sync-host",
        "127.0.0.1",
        "--replica-sync-port",
        &sync_port,
        "--no-router-kv-events",
    ];
    let mut outer = with_hosts(&hosts, &command(&words, &[]));
    let selector = Selector::listening(Program::spawn(directory.path(), &mut outer));
    add_worker(&selector);

    let first = Publisher::on("127.0.0.2:*");
    let port = first.address().port();
    register(&selector, &format!("tcp://peer.test:{port}"));
    first.wait_for_subscriber();
    first.book("from-the-first-address");
    wait_for_live(&selector, 1);

    point_to("127.0.0.3");
    drop(first);
    let second = Publisher::on(&format!("127.0.0.3:{port}"));
    second.wait_for_subscriber();
    second.book("from-the-second-address");
    wait_for_live(&selector, 2);
}

#[test]
fn a_peer_at_an_ipv6_address_is_followed() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let peer = Publisher::on("[::1]:*");
    assert!(peer.endpoint.starts_with("tcp://[::1]:"), "{}", peer.endpoint);
    let peer = peer.followed_by(&selector);
    peer.book("over-ipv6");
    wait_for_live(&selector, 1);
    assert_eq!(selector.get("/replica_sync/peers"), serde_json::json!([peer.endpoint]));
    peer.free("over-ipv6");
    wait_for_live(&selector, 0);
}
