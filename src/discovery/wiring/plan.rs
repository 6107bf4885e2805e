//! What is wanted of one selector, from what all of them told. Pure.
//!
//! Invariants: nobody gets an endpoint of its own process; an endpoint is wanted once, however many addresses of its
//! process are named; what somebody else registered is removed with `prune` alone, and never while a selector has not
//! answered yet, because the endpoint may be its.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use super::{endpoint::normalise, look::ReplicaSync};

/// What is known of a selector once it has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whether it takes part.
    pub sync: ReplicaSync,
    /// Where others subscribe to it.
    pub publisher: String,
    /// Changes with every start of the process.
    pub instance_id: Option<String>,
    /// Marks what the process publishes.
    pub router_id: Option<u64>,
    /// Where its HTTP port is, resolved.
    pub http_addresses: BTreeSet<SocketAddr>,
    /// Where its publisher is, resolved.
    pub publisher_addresses: BTreeSet<SocketAddr>,
}

impl Facts {
    /// Whether both are one process under two addresses, as far as that can be told.
    fn is_same_process(&self, other: &Self) -> bool {
        if let (Some(one), Some(other)) = (&self.instance_id, &other.instance_id) {
            return one == other;
        }
        if let (Some(one), Some(other)) = (self.router_id, other.router_id) {
            return one == other;
        }
        !self.http_addresses.is_disjoint(&other.http_addresses)
    }

    fn has_same_publisher(&self, other: &Self) -> bool {
        normalise(&self.publisher) == normalise(&other.publisher)
            || !self.publisher_addresses.is_disjoint(&other.publisher_addresses)
    }
}

/// A selector as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its base URL.
    pub url: Arc<str>,
    /// What it told last; none before its first answer.
    pub facts: Option<Facts>,
}

/// What has to be done at one selector, and how it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Endpoints that should be registered, in the order of the selectors.
    pub wanted: Vec<String>,
    /// Wanted endpoints that are, as they are spelled there, with the selector each belongs to.
    pub registered: Vec<(String, Arc<str>)>,
    /// Wanted endpoints that are not, with the selector each belongs to.
    pub register: Vec<(String, Arc<str>)>,
    /// Endpoints to remove, as they are spelled there.
    pub deregister: Vec<String>,
    /// Endpoints that nobody of ours has and that stay.
    pub strangers: Vec<String>,
    /// URLs of selectors that have not answered yet.
    pub awaited: Vec<Arc<str>>,
    /// URLs that lead to the same process.
    pub same_as: Vec<Arc<str>>,
    /// URLs of other processes that are said to publish at the same address.
    pub clashes: Vec<Arc<str>>,
}

impl Plan {
    /// Whether something has to be changed.
    pub fn has_work(&self) -> bool {
        !self.register.is_empty() || !self.deregister.is_empty()
    }
}

/// What becomes of peers that somebody else registered.
#[derive(Clone, Copy, Debug)]
pub enum Strangers<'a> {
    /// They stay.
    Keep,
    /// They go, once every selector has answered.
    Remove {
        /// Endpoints that stay.
        but: &'a [String],
    },
}

impl Strangers<'_> {
    fn removes(self, normal: &str) -> bool {
        match self {
            Self::Keep => false,
            Self::Remove { but } => !but.iter().any(|kept| normalise(kept) == normal),
        }
    }
}

/// The plan for the selector at place `me` of `members`, which lists `there`, where this program registered `tracked`
/// (endpoint to URL of its selector).
pub fn plan(
    me: usize,
    members: &[Member],
    there: &[String],
    tracked: &BTreeMap<String, String>,
    strangers: Strangers<'_>,
) -> Plan {
    let mut plan = Plan::default();
    let Some(own) = members.get(me).and_then(|m| m.facts.as_ref()).filter(|f| f.sync == ReplicaSync::Enabled) else {
        return plan;
    };
    // Normal form to spelling and selector, for what is wanted.
    let mut wanted: Vec<(String, &str, &Arc<str>)> = Vec::new();
    for (at, member) in members.iter().enumerate().filter(|(at, _)| *at != me) {
        let Some(facts) = &member.facts else {
            plan.awaited.push(member.url.clone());
            continue;
        };
        if own.is_same_process(facts) {
            plan.same_as.push(member.url.clone());
            continue;
        }
        if facts.sync != ReplicaSync::Enabled {
            continue;
        }
        if own.has_same_publisher(facts) {
            plan.clashes.push(member.url.clone());
            continue;
        }
        let is_seen = members[..at].iter().enumerate().any(|(before, m)| {
            let enabled = m.facts.as_ref().filter(|f| f.sync == ReplicaSync::Enabled);
            before != me && enabled.is_some_and(|f| f.is_same_process(facts) && !own.has_same_publisher(f))
        });
        let normal = normalise(&facts.publisher);
        if !is_seen && !wanted.iter().any(|(known, ..)| *known == normal) {
            wanted.push((normal, &facts.publisher, &member.url));
        }
    }
    plan.wanted = wanted.iter().map(|(_, spelled, _)| (*spelled).to_owned()).collect();

    let all_answered = members.iter().all(|m| m.facts.is_some());
    let is_awaited = |url: &String| members.iter().any(|m| *m.url == **url && m.facts.is_none());
    let mut present: BTreeSet<String> = BTreeSet::new();
    for spelled in there {
        let normal = normalise(spelled);
        let owner = tracked.get(spelled);
        if let Some((_, _, url)) = wanted.iter().find(|(known, ..)| *known == normal)
            && present.insert(normal.clone())
        {
            plan.registered.push((spelled.clone(), (*url).clone()));
        } else if owner.is_some_and(|url| !is_awaited(url))
            || (owner.is_none() && all_answered && strangers.removes(&normal))
        {
            plan.deregister.push(spelled.clone());
        } else {
            plan.strangers.push(spelled.clone());
        }
    }
    let missing = wanted.into_iter().filter(|(normal, ..)| !present.contains(normal));
    plan.register = missing.map(|(_, spelled, url)| (spelled.to_owned(), url.clone())).collect();
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Strangers<'_> = Strangers::Keep;
    const PRUNE: Strangers<'_> = Strangers::Remove { but: &[] };

    fn facts(host: &str) -> Facts {
        Facts {
            sync: ReplicaSync::Enabled,
            publisher: format!("tcp://{host}:9092"),
            instance_id: None,
            router_id: None,
            http_addresses: BTreeSet::new(),
            publisher_addresses: BTreeSet::new(),
        }
    }

    fn member(host: &str, facts: Option<Facts>) -> Member {
        Member { url: format!("http://{host}:8092").into(), facts }
    }

    fn fleet(hosts: &[&str]) -> Vec<Member> {
        hosts.iter().map(|h| member(h, Some(facts(h)))).collect()
    }

    fn put(endpoints: &[(&str, &str)]) -> BTreeMap<String, String> {
        endpoints.iter().map(|(e, h)| ((*e).to_owned(), format!("http://{h}:8092"))).collect()
    }

    fn listed(endpoints: &[&str]) -> Vec<String> {
        endpoints.iter().map(|e| (*e).to_owned()).collect()
    }

    fn missing(plan: &Plan) -> Vec<&str> {
        plan.register.iter().map(|(e, _)| e.as_str()).collect()
    }

    #[test]
    fn everybody_gets_all_others_and_never_itself() {
        let members = fleet(&["a", "b", "c"]);
        let plan_b = plan(1, &members, &[], &BTreeMap::new(), KEEP);
        assert_eq!(missing(&plan_b), ["tcp://a:9092", "tcp://c:9092"]);
        let there = listed(&["tcp://A:9092", "tcp://c:09092"]);
        let done = plan(1, &members, &there, &BTreeMap::new(), KEEP);
        assert!(!done.has_work() && done.registered.len() == 2, "{done:?}");
    }

    #[test]
    fn what_others_registered_stays_without_prune() {
        let members = fleet(&["a", "b"]);
        let there = listed(&["tcp://b:9092", "tcp://by-hand:9092", "tcp://gone:9092"]);
        let tracked = put(&[("tcp://gone:9092", "gone"), ("tcp://b:9092", "b")]);
        let kept = plan(0, &members, &there, &tracked, KEEP);
        assert_eq!((kept.deregister, kept.strangers), (listed(&["tcp://gone:9092"]), listed(&["tcp://by-hand:9092"])));
        let pruned = plan(0, &members, &there, &tracked, PRUNE);
        assert_eq!(pruned.deregister, ["tcp://by-hand:9092", "tcp://gone:9092"]);
        let but = listed(&["tcp://BY-HAND:9092"]);
        let spared = plan(0, &members, &there, &tracked, Strangers::Remove { but: &but });
        assert_eq!(spared.deregister, ["tcp://gone:9092"]);
    }

    #[test]
    fn a_selector_that_has_not_answered_keeps_its_place() {
        let mut members = fleet(&["a", "b"]);
        members.push(member("c", None));
        let there = listed(&["tcp://b:9092", "tcp://c:7000", "tcp://by-hand:1"]);
        let tracked = put(&[("tcp://c:7000", "c")]);
        let plan_a = plan(0, &members, &there, &tracked, PRUNE);
        assert!(!plan_a.has_work() && plan_a.awaited.len() == 1, "{plan_a:?}");
        // It answers, and publishes elsewhere now.
        members[2].facts = Some(facts("c"));
        let plan_a = plan(0, &members, &there, &tracked, PRUNE);
        assert_eq!(missing(&plan_a), ["tcp://c:9092"]);
        assert_eq!(plan_a.deregister, ["tcp://c:7000", "tcp://by-hand:1"]);
    }

    #[test]
    fn one_process_under_two_addresses_is_wired_once_and_not_to_itself() {
        let mut members = fleet(&["a", "alias", "c"]);
        for member in &mut members[..2] {
            member.facts.as_mut().unwrap().instance_id = Some("same".to_owned());
        }
        members[2].facts.as_mut().unwrap().instance_id = Some("other".to_owned());
        let there = listed(&["tcp://alias:9092"]);
        let plan_a = plan(0, &members, &there, &put(&[("tcp://alias:9092", "alias")]), KEEP);
        assert_eq!((missing(&plan_a), plan_a.same_as.len()), (vec!["tcp://c:9092"], 1));
        assert_eq!(plan_a.deregister, ["tcp://alias:9092"]);
        assert_eq!(missing(&plan(1, &members, &[], &BTreeMap::new(), KEEP)), ["tcp://c:9092"]);
        assert_eq!(missing(&plan(2, &members, &[], &BTreeMap::new(), KEEP)), ["tcp://a:9092"]);
    }

    #[test]
    fn addresses_tell_processes_apart_where_identities_are_not_told() {
        let mut members = fleet(&["127.0.0.1", "localhost", "b"]);
        for member in &mut members[..2] {
            let facts = member.facts.as_mut().unwrap();
            facts.http_addresses = BTreeSet::from(["127.0.0.1:8092".parse().unwrap()]);
            facts.publisher_addresses = BTreeSet::from(["127.0.0.1:9092".parse().unwrap()]);
        }
        assert_eq!(missing(&plan(0, &members, &[], &BTreeMap::new(), KEEP)), ["tcp://b:9092"]);
        // Two HTTP ports and one publisher: they cannot both be right.
        members[1].facts.as_mut().unwrap().http_addresses = BTreeSet::from(["127.0.0.1:8093".parse().unwrap()]);
        let plan_a = plan(0, &members, &[], &BTreeMap::new(), KEEP);
        assert_eq!((missing(&plan_a), plan_a.clashes.len()), (vec!["tcp://b:9092"], 1));
    }

    #[test]
    fn a_selector_without_replica_sync_is_left_out() {
        let mut members = fleet(&["a", "b", "c"]);
        members[1].facts.as_mut().unwrap().sync = ReplicaSync::Disabled;
        assert_eq!(plan(1, &members, &[], &BTreeMap::new(), KEEP), Plan::default());
        let there = listed(&["tcp://b:9092"]);
        let plan_a = plan(0, &members, &there, &put(&[("tcp://b:9092", "b")]), KEEP);
        assert_eq!(missing(&plan_a), ["tcp://c:9092"]);
        assert_eq!(plan_a.deregister, ["tcp://b:9092"]);
    }

    #[test]
    fn a_second_spelling_of_a_peer_goes_when_it_is_ours() {
        let members = fleet(&["a", "b"]);
        let there = listed(&["tcp://b:09092", "tcp://b:9092"]);
        let plan_a = plan(0, &members, &there, &put(&[("tcp://b:9092", "b")]), KEEP);
        assert_eq!(plan_a.deregister, ["tcp://b:9092"]);
        assert!(plan_a.register.is_empty());
    }
}
