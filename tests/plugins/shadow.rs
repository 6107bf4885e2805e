//! A second policy beside the one in force: compared, counted, explained, and acting for its share.

use pointsman::{
    KvRouterConfig,
    plugins::RouterPluginRegistry,
    selection::{
        policy::{
            document::{self, PolicyComposition, PolicyDocument},
            shadow::ShadowReport,
        },
        worker::WorkerRole,
    },
};
use serde_json::json;

use super::support::*;

const INSTANCES: &str = "
worker_selection:
  aggregated: requests
  instances:
    - {name: requests, type: least-loaded}
    - {name: tokens, type: thunderagent}
    - {name: broken, type: broken}
";

fn compose(registry: &RouterPluginRegistry, shadow: &str) -> (KvRouterConfig, PolicyComposition) {
    let document = PolicyDocument::parse(&format!("{INSTANCES}shadow: {{aggregated: {shadow}}}"), "p.yaml").unwrap();
    let mut config = KvRouterConfig::default();
    document::apply(&document, &mut config);
    let composition =
        PolicyComposition::resolve(registry, &config, Some(&document), &[WorkerRole::Aggregated], &Default::default())
            .unwrap();
    (config, composition)
}

/// By requests worker 1 is the better one, by tokens worker 2.
fn fleet(shadow: &str) -> Fleet {
    let mut registry = pointsman::plugins::router_plugin_registry();
    registry
        .register_worker_selection(
            "broken",
            std::sync::Arc::new(|_| {
                Ok(factory(|| policy(vec![], vec![], picker(pointsman::WorkerInputs::NONE, |_, _| panic!("broken")))))
            }),
        )
        .unwrap();
    let (config, composition) = compose(&registry, shadow);
    let fleet = Fleet::with(config, composition.plugins());
    fleet.worker(1, json!({}));
    fleet.worker(2, json!({}));
    fleet.book("a", 1, 0..1, 1000);
    fleet.book("b", 2, 10..11, 0);
    fleet.book("c", 2, 20..21, 0);
    fleet
}

fn report(fleet: &Fleet) -> ShadowReport {
    let reports = fleet.core.shadow_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports[0].1
}

#[test]
fn a_shadow_is_compared_and_does_not_act() {
    let fleet = fleet("{instance: tokens}");
    let mut asked = request(2);
    asked.explain = true;
    let answer = fleet.select(asked).unwrap();
    assert_eq!(answer.worker_id, 1);
    let explanation = answer.explain.unwrap();
    let shadow = explanation.shadow.unwrap();
    assert_eq!((&*shadow.instance, shadow.acted, shadow.worker_id), ("tokens", false, Some(2)));
    assert_eq!(shadow.regret_tokens, Some(1000), "prefill in progress on worker 1");
    fleet.reserve(request(2)).unwrap();
    let expected = ShadowReport { different: 2, in_force_regret_tokens: 2000, ..ShadowReport::default() };
    assert_eq!(report(&fleet), expected);
    assert_eq!(fleet.bookings(), [(1, 0, 2), (2, 0, 2)], "one booking a request");
}

#[test]
fn a_canary_acts_for_its_share_and_keeps_its_sessions() {
    let fleet = fleet("{instance: tokens, share: 50%}");
    let of = |session: &str| {
        let mut asked = request(2);
        asked.session_id = Some(session.into());
        fleet.select(asked).unwrap().worker_id
    };
    let chosen: Vec<u64> = (0..64).map(|at| of(&format!("s{at}"))).collect();
    let again: Vec<u64> = (0..64).map(|at| of(&format!("s{at}"))).collect();
    assert_eq!(chosen, again, "a session keeps its policy");
    let acted = chosen.iter().filter(|&&worker| worker == 2).count() as u64;
    assert!((16..=48).contains(&acted), "{acted} of 64");
    let seen = report(&fleet);
    assert_eq!((seen.acted, seen.different, seen.same, seen.failed), (2 * acted, 128, 0, 0));
    assert_eq!((seen.in_force_regret_tokens, seen.shadow_regret_tokens), (128_000, 0));
}

#[test]
fn without_sessions_a_canary_takes_its_share_of_the_bookings_by_their_ids() {
    let fleet = fleet("{instance: tokens, share: 50%}");
    for at in 0..64 {
        let mut asked = request(2);
        asked.selection_id = Some(format!("r{at}"));
        fleet.reserve(asked).unwrap();
        fleet.core.free_reservation(&format!("r{at}")).unwrap();
    }
    let acted = report(&fleet).acted;
    assert!((16..=48).contains(&acted), "{acted} of 64 with one prompt");
}

#[test]
fn a_shadow_that_panics_costs_no_request_and_no_booking() {
    for shadow in ["{instance: broken}", "{instance: broken, share: 100%}"] {
        let fleet = fleet(shadow);
        for _ in 0..3 {
            assert_eq!(fleet.select(request(2)).unwrap().worker_id, 1);
        }
        fleet.reserve(request(2)).unwrap();
        let seen = report(&fleet);
        assert!(seen.failed >= 4, "{seen:?}");
        assert_eq!(seen.acted, 0);
        assert_eq!(fleet.bookings(), [(1, 0, 2), (2, 0, 2)]);
    }
}

#[test]
fn the_default_can_stand_beside_a_policy() {
    let fleet = fleet("{instance: default}");
    let answer = fleet.select(request(2)).unwrap();
    assert_eq!(answer.worker_id, 1);
    assert_eq!(report(&fleet).different, 1, "the default goes where less is to be computed");
}

#[test]
fn a_document_without_a_shadow_takes_it_away() {
    let fleet = fleet("{instance: tokens, share: 100%}");
    assert_eq!(fleet.select(request(2)).unwrap().worker_id, 2);
    let (config, mut composition) = compose(&pointsman::plugins::router_plugin_registry(), "{instance: tokens}");
    composition.shadows = [const { None }; WorkerRole::ALL.len()];
    fleet.core.replace_policies(&config, &composition.plugins()).unwrap();
    assert_eq!(fleet.select(request(2)).unwrap().worker_id, 1);
    assert_eq!(report(&fleet).acted, 1, "counts stay");
}
