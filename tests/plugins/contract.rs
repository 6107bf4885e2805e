//! The contract's cases about worker selection, one test each, named after them (golden/plugins/contract.json).

use std::{collections::BTreeSet, fs};

use pointsman::{
    WorkerInputs,
    plugins::worker_selection::WorkerSelectionPolicyError,
    selection::{
        SelectionError,
        request::{AffinityTarget, RoutingConstraints},
    },
};
use serde_json::{Value, json};

use super::support::{Fleet, Seen, active_requests, filter, lowest, picker, policy, rank, request, request_of, scorer};

/// Cases tested elsewhere: by the host's own tests, which can supply what no public verb can; and those of the request
/// classifier, which has its own.
const ELSEWHERE: [&str; 8] = [
    "estimates-are-not-device-overlap",
    "shared-hits",
    "resolve-classifier-unknown",
    "classifier-install-twice",
    "classifier-past-deadline",
    "classifier-target",
    "classifier-unregistered",
    "classifier-drop",
];

#[test]
fn every_recorded_case_has_a_test() {
    let recorded = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/plugins/contract.json"));
    let recorded: Value = serde_json::from_str(&recorded.unwrap()).unwrap();
    let cases: BTreeSet<&str> =
        recorded["cases"].as_array().unwrap().iter().map(|case| case["case"].as_str().unwrap()).collect();
    for case in cases {
        let here = include_str!("contract.rs").contains(&format!("fn {}()", case.replace('-', "_")));
        assert!(here != ELSEWHERE.contains(&case), "{case}");
    }
}

fn text(result: Result<impl std::fmt::Debug, SelectionError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn unwritten_cost() {
    let fleet = Fleet::new(&[1, 2], || policy(vec![], vec![scorer(WorkerInputs::NONE, |_, _, _| Ok(()))], lowest()));
    let error = fleet.reserve(request(2)).unwrap_err();
    assert_eq!(error.to_string(), "scorer 0 produced a non-finite cost for candidate row 0");
    assert_eq!(error.reason(), "internal");
}

#[test]
fn infinite_cost() {
    let fleet = Fleet::new(&[1, 2], || {
        let first = scorer(WorkerInputs::NONE, |_, _, costs| {
            costs.copy_from_slice(&[1.0, f64::INFINITY]);
            Ok(())
        });
        policy(vec![], vec![first], lowest())
    });
    assert_eq!(text(fleet.reserve(request(2))), "scorer 0 produced a non-finite cost for candidate row 1");
    // Two finite costs may have a sum that is not.
    let fleet = Fleet::new(&[1, 2], || {
        let huge = || {
            scorer(WorkerInputs::NONE, |_, _, costs| {
                costs.fill(f64::MAX);
                Ok(())
            })
        };
        policy(vec![], vec![huge(), huge()], lowest())
    });
    assert_eq!(text(fleet.reserve(request(2))), "scorer 1 produced a non-finite cost for candidate row 0");
}

#[test]
fn row_out_of_range() {
    let fleet = Fleet::new(&[1, 2], || policy(vec![], vec![], picker(WorkerInputs::NONE, |_, _| Ok(2))));
    let error = text(fleet.reserve(request(2)));
    assert_eq!(error, "picker returned candidate row 2, but the candidate table contains 2 rows");
    assert_eq!(fleet.bookings(), [(1, 0, 0), (2, 0, 0)]);
}

#[test]
fn picker_only() {
    let seen = Seen::new();
    let fleet = Fleet::new(&[1, 2], {
        let seen = seen.clone();
        move || {
            let seen = seen.clone();
            policy(
                vec![],
                vec![],
                picker(WorkerInputs::NONE, move |_, input| {
                    let costs: Vec<f64> = input.candidates().iter().map(|row| row.cost()).collect();
                    seen.push((costs, input.cache().is_none(), input.load().is_none()));
                    Ok(1)
                }),
            )
        }
    });
    assert_eq!(fleet.reserve(request(2)).unwrap().worker_id, 2);
    assert_eq!(seen.take(), [(vec![0.0, 0.0], true, true)]);
}

#[test]
fn access_is_per_component() {
    let seen = Seen::new();
    let fleet = Fleet::new(&[1], {
        let seen = seen.clone();
        move || {
            let keep = |name: &'static str, inputs| {
                let seen = seen.clone();
                filter(inputs, move |context, candidate| {
                    seen.push((name, candidate.cache().is_some(), candidate.load().is_some()));
                    assert_eq!(context.cache().is_some(), candidate.cache().is_some());
                    Ok(true)
                })
            };
            let score = |name: &'static str, inputs| {
                let seen = seen.clone();
                scorer(inputs, move |_, candidates, costs| {
                    let candidate = candidates.get(0).unwrap();
                    seen.push((name, candidate.cache().is_some(), candidate.load().is_some()));
                    costs.fill(0.0);
                    Ok(())
                })
            };
            policy(
                vec![keep("filter 0", WorkerInputs::NONE), keep("filter 1", WorkerInputs::CACHE)],
                vec![score("scorer 0", WorkerInputs::LOAD), score("scorer 1", WorkerInputs::NONE)],
                lowest(),
            )
        }
    });
    fleet.reserve(request(2)).unwrap();
    assert_eq!(
        seen.take(),
        [("filter 0", false, false), ("filter 1", true, false), ("scorer 0", false, true), ("scorer 1", false, false),]
    );
}

#[test]
fn all_filtered() {
    let seen = Seen::new();
    let fleet = Fleet::new(&[1, 2], {
        let seen = seen.clone();
        move || {
            let seen = seen.clone();
            let score = scorer(WorkerInputs::NONE, move |_, _, costs| {
                seen.push(());
                costs.fill(0.0);
                Ok(())
            });
            policy(vec![filter(WorkerInputs::NONE, |_, _| Ok(false))], vec![score], lowest())
        }
    });
    let error = fleet.reserve(request(2)).unwrap_err();
    assert_eq!(error.to_string(), "all eligible workers were rejected by policy filters");
    assert_eq!(error.reason(), "unavailable");
    assert!(seen.take().is_empty(), "no scorer is called");
}

#[test]
fn filter_error() {
    let seen = Seen::new();
    let fleet = Fleet::new(&[1, 2], {
        let seen = seen.clone();
        move || {
            let seen = seen.clone();
            let fail = filter(WorkerInputs::NONE, move |_, candidate| {
                seen.push(candidate.worker());
                Err(WorkerSelectionPolicyError::failed("no"))
            });
            policy(vec![fail], vec![], lowest())
        }
    });
    assert_eq!(text(fleet.reserve(request(2))), "worker selection policy failed: no");
    assert_eq!(seen.take(), [rank(1, 0)], "raised at the first candidate");
}

#[test]
fn nobody_allowed() {
    let fleet = Fleet::new(&[1, 2], || policy(vec![], vec![], lowest()));
    let mut ask = request(2);
    ask.steering.allowed_worker_ids = Some(BTreeSet::from([9]));
    let error = fleet.reserve(ask).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.reason()), ("no endpoints available to route work", "unavailable"));
}

#[test]
fn pinned_missing_rank() {
    let fleet = Fleet::new(&[1, 2], || policy(vec![], vec![], lowest()));
    let mut ask = request(2);
    ask.steering.pinned_worker = Some(rank(2, 1));
    assert_eq!(text(fleet.reserve(ask.clone())), "no endpoints available to route work");
    ask.steering.pinned_worker = Some(rank(2, 0));
    ask.steering.allowed_worker_ids = Some(BTreeSet::from([1]));
    assert_eq!(text(fleet.reserve(ask.clone())), "pinned worker 2 is not in allowed worker set");
    ask.steering.allowed_worker_ids = None;
    assert_eq!(fleet.reserve(ask).unwrap().worker_id, 2);
}

#[test]
fn preferred_taint() {
    let seen = Seen::new();
    let fleet = Fleet::new(&[], {
        let seen = seen.clone();
        move || {
            let look = |inputs| {
                let seen = seen.clone();
                scorer(inputs, move |_, candidates, costs| {
                    seen.push(candidates.iter().map(|row| row.preferred_taint_multiplier()).collect::<Vec<_>>());
                    costs.fill(0.0);
                    Ok(())
                })
            };
            policy(vec![], vec![look(WorkerInputs::PREFERRED_TAINT), look(WorkerInputs::NONE)], lowest())
        }
    });
    fleet.worker(1, json!({"taints": ["t"]}));
    fleet.worker(2, json!({}));
    let mut ask = request(2);
    fleet.reserve(ask.clone()).unwrap();
    assert_eq!(seen.take(), [vec![None, None], vec![None, None]], "no preferences, no multiplier");
    let preferred_taints = [("t".to_owned(), 0.5), ("u".to_owned(), 3.0)].into();
    ask.steering.routing_constraints = RoutingConstraints { preferred_taints, ..RoutingConstraints::default() };
    fleet.reserve(ask.clone()).unwrap();
    assert_eq!(seen.take(), [vec![Some(0.6299485325744386), Some(1.0)], vec![None, None]]);
    ask.steering.pinned_worker = Some(rank(1, 0));
    fleet.reserve(ask).unwrap();
    assert_eq!(seen.take(), [vec![None], vec![None]], "a pinned rank has no multiplier");
}

#[test]
fn load_row() {
    let seen = Seen::new();
    let fleet = Fleet::new(&[1], {
        let seen = seen.clone();
        move || {
            let seen = seen.clone();
            policy(
                vec![],
                vec![],
                picker(WorkerInputs::LOAD, move |_, input| {
                    let load = input.load().unwrap()[0];
                    seen.push((
                        load.is_available(),
                        load.active_prefill_tokens(),
                        load.decode_cost_blocks(),
                        load.active_requests(),
                    ));
                    Ok(0)
                }),
            )
        }
    });
    fleet.book("a", 1, 100..106, 5);
    (0..6).for_each(|k| fleet.book(&format!("b{k}"), 1, 0..0, 0));
    fleet.select(request(8)).unwrap();
    assert_eq!(seen.take(), [(true, 5, 14.0, 7)]);
    // Blocks that live prompts there begin with cost nothing more.
    fleet.select(request_of(&[100, 101, 102, 103, 7, 8])).unwrap();
    assert_eq!(seen.take(), [(true, 5, 8.0, 7)]);
}

/// Candidates, affinity target, and whether there is a pin.
type Look = (Vec<(u64, u32)>, Option<AffinityTarget>, bool);

fn affinity(exclusive: bool) -> (Fleet, Seen<Look>) {
    let seen = Seen::new();
    let fleet = Fleet::new(&[], {
        let seen = seen.clone();
        move || {
            let seen = seen.clone();
            let look = picker(WorkerInputs::NONE, move |context, input| {
                let rows = input.candidates().iter().map(|row| (row.worker().worker_id, row.worker().dp_rank));
                seen.push((rows.collect(), context.affinity_target(), context.pinned_worker().is_some()));
                Ok(0)
            });
            policy(vec![], vec![active_requests()], look).with_exclusive_affinity(exclusive)
        }
    });
    // Rows are sorted whatever the order of arrival.
    fleet.worker(2, json!({"data_parallel_size": 2}));
    fleet.worker(1, json!({"data_parallel_size": 2}));
    (fleet, seen)
}

fn ask_for(worker_id: u64, dp_rank: Option<u32>) -> pointsman::selection::request::SelectRequest {
    let mut ask = request(2);
    ask.steering.affinity_target = Some(AffinityTarget { worker_id, dp_rank });
    ask
}

#[test]
fn affinity_advisory() {
    let (fleet, seen) = affinity(false);
    fleet.reserve(ask_for(2, Some(1))).unwrap();
    let all = vec![(1, 0), (1, 1), (2, 0), (2, 1)];
    assert_eq!(seen.take(), [(all, Some(AffinityTarget::new(2, Some(1))), false)]);
}

#[test]
fn affinity_exclusive_rank() {
    let (fleet, seen) = affinity(true);
    assert_eq!(fleet.reserve(ask_for(2, Some(1))).unwrap().dp_rank, 1);
    assert_eq!(seen.take(), [(vec![(2, 1)], Some(AffinityTarget::new(2, Some(1))), false)]);
    // A target that is not there is no target.
    fleet.reserve(ask_for(2, Some(7))).unwrap();
    assert_eq!(seen.take()[0].0.len(), 4);
}

#[test]
fn affinity_exclusive_worker() {
    let (fleet, seen) = affinity(true);
    fleet.reserve(ask_for(2, None)).unwrap();
    assert_eq!(seen.take()[0].0, [(2, 0), (2, 1)]);
}
