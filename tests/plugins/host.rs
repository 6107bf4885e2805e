//! What the host does around a policy: inputs, context, affinity, explanations, the critical section, reload.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use pointsman::{
    KvRouterConfig, WorkerInputs,
    plugins::{
        RouterPluginRegistry,
        worker_selection::{SessionContext, WorkerSelectionInputTrigger},
    },
    selection::{
        SelectionCore, Tier,
        config::SessionAffinityMode,
        core::Plugins,
        request::{AffinityTarget, RouterConfigOverride},
    },
};
use serde_json::json;

use super::{
    registry::{configured, instance},
    support::{
        BLOCK, Fleet, Seen, active_requests, factory, filter, lowest, picker, policy, rank, request, request_of, scorer,
    },
};

#[test]
fn caches_are_shown_by_tier() {
    let seen = Seen::new();
    let fleet = Fleet::new(&[1, 2], {
        let seen = seen.clone();
        move || {
            let seen = seen.clone();
            policy(
                vec![],
                vec![],
                picker(WorkerInputs::CACHE, move |context, input| {
                    let caches = input.cache().unwrap();
                    assert_eq!((caches.len(), caches.iter().len()), (2, 2));
                    assert!(!caches.is_empty() && caches.get(2).is_none());
                    for cache in caches.iter() {
                        seen.push((
                            cache.device_overlap_blocks(),
                            cache.host_overlap_blocks(),
                            cache.disk_overlap_blocks(),
                            cache.accounting_cache_estimate(),
                        ));
                        assert!(cache.has_tier_matches() && context.cache().unwrap().has_tier_matches());
                        assert!(cache.shared_hits().is_none() && context.cache().unwrap().shared_hits().is_none());
                    }
                    Ok(1)
                }),
            )
        }
    });
    fleet.store(2, Tier::Device, &[1, 2, 3], 0);
    fleet.store(2, Tier::HostPinned, &[1, 2, 3, 4, 5], 3);
    fleet.store(2, Tier::External, &[1, 2, 3, 4, 5, 6], 5);
    let answer = fleet.reserve(request_of(&[1, 2, 3, 4, 5, 6, 7])).unwrap();
    // 3 + 2 * 0.75 + 1 * 0.25 blocks of 16 tokens.
    assert_eq!(seen.take(), [(0.0, 0.0, 0.0, (0.0, 0)), (3.0, 2.0, 1.0, (4.75, 76))]);
    assert_eq!(answer.effective_prefill_tokens, 7 * BLOCK - 76, "booked by the same estimate");
}

#[test]
fn nobody_pays_for_a_cache_that_no_component_reads() {
    let mut registry = RouterPluginRegistry::default();
    let blind = Arc::new(|_: &_| Ok(factory(|| policy(vec![], vec![active_requests()], lowest()))));
    let seeing = Arc::new(|_: &_| {
        Ok(factory(|| policy(vec![filter(WorkerInputs::CACHE, |_, _| Ok(true))], vec![active_requests()], lowest())))
    });
    registry.register_worker_selection("blind", blind).unwrap();
    registry.register_worker_selection("seeing", seeing).unwrap();
    let plugins = || Plugins::Registry { registry: &registry, role: Default::default() };
    let using = |kind| configured("x", [instance("x", kind, json!({}))]);
    let fleet = Fleet::with(using("seeing"), plugins());
    fleet.worker(1, json!({"data_parallel_size": 2}));
    assert_eq!(fleet.listened(), [(1, 0), (1, 1)]);
    fleet.store(1, Tier::Device, &[1, 2], 0);
    let effective = || fleet.select(request_of(&[1, 2, 3])).unwrap().effective_prefill_tokens;
    assert_eq!(effective(), BLOCK);
    fleet.core.replace_policies(&using("blind"), &plugins()).unwrap();
    assert_eq!(fleet.listened(), [], "no listener, no index");
    assert_eq!(effective(), 3 * BLOCK, "nothing is looked up");
    fleet.worker(2, json!({}));
    assert_eq!(fleet.listened(), []);
    fleet.core.replace_policies(&using("seeing"), &plugins()).unwrap();
    assert_eq!(fleet.listened(), [(1, 0), (1, 1), (2, 0)]);
}

#[test]
fn the_context_tells_what_the_request_says() {
    let seen = Seen::new();
    let fleet = Fleet::new(&[1, 2], {
        let seen = seen.clone();
        move || {
            let seen = seen.clone();
            policy(
                vec![],
                vec![],
                picker(WorkerInputs::NONE, move |context, _| {
                    let session = context.session_context();
                    seen.push((
                        (context.prompt_tokens(), context.request_blocks(), context.block_size()),
                        context.tracks_prefill_tokens(),
                        context.prefix_hashes().to_vec(),
                        context.session_id().map(str::to_owned),
                        session.and_then(|session| session.parent_session_id().map(str::to_owned)),
                        session.and_then(|session| session.session_final()),
                        session.and_then(|session| session.input_trigger()),
                        session.map_or(0, |session| session.agent_headers().len()),
                        (context.expected_output_tokens(), context.priority_jump(), context.strict_priority()),
                        (context.policy_class().map(str::to_owned), context.router_temperature_override()),
                        context.is_query(),
                        context.worker_capacity(rank(2, 0)).total_kv_blocks(),
                    ));
                    assert!(context.cache().is_none());
                    assert_eq!(context.worker_capacity(rank(3, 0)).max_num_batched_tokens(), None);
                    Ok(0)
                }),
            )
        }
    });
    let mut ask = request_of(&[5, 6]);
    ask.prompt.isl_tokens = Some(40);
    ask.session_id = Some("flat".into());
    fleet.select(ask.clone()).unwrap();
    let plain = seen.take().remove(0);
    assert_eq!(plain.0, (40, 3, 16));
    assert_eq!((plain.1, plain.2, plain.3.as_deref()), (true, vec![5, 6], Some("flat")));
    assert_eq!((plain.4, plain.5, plain.6, plain.7), (None, None, None, 0));
    assert_eq!((plain.8, plain.9, plain.10, plain.11), ((None, 0.0, 0), (None, None), true, Some(1002)));

    let mut session =
        SessionContext::new("s".into(), Some("p".into()), Some(true), Some(WorkerSelectionInputTrigger::ToolResult));
    session.agent_headers = Some(BTreeMap::from([("a".to_owned(), vec!["b".to_owned()])]));
    ask.session_context = Some(session);
    ask.steering.expected_output_tokens = Some(7);
    ask.steering.priority_jump = Some(1.5);
    ask.steering.strict_priority = Some(3);
    ask.steering.policy_class = Some("gold".into());
    ask.router_config_override = Some(RouterConfigOverride {
        router_temperature: Some(0.5),
        track_prefill_tokens: Some(false),
        ..RouterConfigOverride::default()
    });
    fleet.reserve(ask).unwrap();
    let full = seen.take().remove(0);
    assert_eq!((full.1, full.3.as_deref(), full.4.as_deref()), (false, Some("s"), Some("p")));
    assert_eq!((full.5, full.6, full.7), (Some(true), Some(WorkerSelectionInputTrigger::ToolResult), 1));
    assert_eq!((full.8, full.9), ((Some(7), 1.5, 3), (Some("gold".into()), Some(0.5))));
    assert!(!full.10);
}

#[test]
fn a_hard_binding_holds_and_a_soft_one_is_advice() {
    let bound = |worker| Some(AffinityTarget::new(worker, Some(0)));
    for (mode, workers, targets) in [
        (SessionAffinityMode::Hard, [1, 1, 1], [None, bound(1), bound(1)]),
        (SessionAffinityMode::Soft, [1, 2, 1], [None, bound(1), bound(2)]),
    ] {
        let seen = Seen::new();
        let make = {
            let seen = seen.clone();
            factory(move || {
                let seen = seen.clone();
                let mut turn = 0;
                let in_turn = picker(WorkerInputs::NONE, move |context, input| {
                    seen.push(context.affinity_target());
                    turn += 1;
                    Ok((turn - 1) % input.candidates().len())
                });
                policy(vec![], vec![], in_turn)
            })
        };
        let config = KvRouterConfig {
            session_affinity_ttl: Some(Duration::from_secs(60)),
            session_affinity_mode: mode,
            ..KvRouterConfig::default()
        };
        let fleet = Fleet::with(config, Plugins::Factory(make));
        [1, 2].into_iter().for_each(|id| fleet.worker(id, json!({})));
        let mut ask = request(1);
        ask.session_id = Some("s".into());
        assert_eq!([(); 3].map(|()| fleet.reserve(ask.clone()).unwrap().worker_id), workers);
        assert_eq!(seen.take(), targets);
    }
}

#[test]
fn an_explanation_names_filters_and_scorers() {
    struct MostlyEven;
    impl pointsman::WorkerFilter for MostlyEven {
        fn keep(
            &mut self,
            _: &pointsman::WorkerSelectionContext<'_>,
            candidate: pointsman::WorkerCandidate<'_>,
        ) -> Result<bool, pointsman::WorkerSelectionPolicyError> {
            Ok(candidate.worker().worker_id.is_multiple_of(2))
        }
    }
    let fleet = Fleet::new(&[1, 2, 4, 6, 8], || {
        let by_id = scorer(WorkerInputs::CACHE, |_, candidates, costs| {
            for (candidate, cost) in candidates.iter().zip(costs) {
                *cost = -(candidate.worker().worker_id as f64);
            }
            Ok(())
        });
        policy(
            vec![filter(WorkerInputs::NONE, |_, _| Ok(true)), Box::new(MostlyEven)],
            vec![active_requests(), by_id],
            lowest(),
        )
        .with_name("even (mine)")
    });
    fleet.worker(10, json!({"taints": []}));
    fleet.store(6, Tier::Device, &[1, 2], 0);
    fleet.book("a", 10, 50..53, 9);
    let mut ask = request_of(&[1, 2, 3]);
    ask.explain = true;
    ask.steering.allowed_worker_ids = Some([1, 2, 4, 6, 10].into());
    let answer = fleet.select(ask).unwrap();
    assert_eq!(answer.worker_id, 10);
    let explained = answer.explain.unwrap();
    assert_eq!((explained.policy.as_str(), explained.runner_up, explained.ties), ("even (mine)", Some((6, 0)), 1));
    let of = |worker: u64| explained.candidates.iter().find(|row| row.worker_id == worker).unwrap();
    assert_eq!((of(1).verdict, of(1).rejected_by.as_deref()), ("filtered", Some("1:MostlyEven")));
    assert_eq!((of(8).verdict, of(8).rejected_by.as_deref()), ("not_allowed", None));
    assert_eq!((of(1).cost, of(1).cost_terms.len()), (None, 0));
    let best = of(10);
    assert_eq!((best.verdict, best.cost), ("eligible", Some(-9.0)));
    assert_eq!((best.active_prefill_tokens, best.active_blocks, best.active_requests), (9, 3, 1));
    let terms: Vec<f64> = best.cost_terms.iter().map(|term| term.1).collect();
    assert_eq!(terms, [1.0, -10.0]);
    assert!(best.cost_terms[0].0.starts_with("0:"), "{:?}", best.cost_terms);
    assert_eq!(of(6).cached_blocks, [2, 0, 0, 0], "raw inputs, asked for or not");
}

/// A policy whose scorer changes the rank that will be chosen, the first `times` times it is called.
fn meddling(times: u32, meddle: fn(&SelectionCore, u32)) -> (Fleet, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let core: Arc<OnceLock<Weak<SelectionCore>>> = Arc::default();
    let fleet = Fleet::new(&[1, 2], {
        let (calls, core) = (Arc::clone(&calls), Arc::clone(&core));
        move || {
            let (calls, core) = (Arc::clone(&calls), Arc::clone(&core));
            let meddle = scorer(WorkerInputs::NONE, move |_, _, costs| {
                let call = calls.fetch_add(1, Ordering::Relaxed);
                if let Some(core) = core.get().and_then(Weak::upgrade).filter(|_| call < times) {
                    meddle(&core, call);
                }
                costs.fill(0.0);
                Ok(())
            });
            policy(vec![], vec![active_requests(), meddle], lowest())
        }
    });
    (0..4).for_each(|k| fleet.book(&format!("b{k}"), 1, 0..0, 0));
    (0..4).for_each(|k| fleet.book(&format!("c{k}"), 2, 0..0, 0));
    core.set(Arc::downgrade(&fleet.core)).unwrap();
    (fleet, calls)
}

#[test]
fn a_choice_whose_rank_changed_is_made_again_twice_at_most() {
    let free = |core: &SelectionCore, call: u32| core.free_reservation(&format!("b{call}")).unwrap();
    let (fleet, calls) = meddling(0, free);
    fleet.reserve(request(1)).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let (fleet, calls) = meddling(1, free);
    assert_eq!(fleet.reserve(request(1)).unwrap().worker_id, 1);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    let (fleet, calls) = meddling(u32::MAX, |core, call| _ = core.free_reservation(&format!("b{call}")));
    assert_eq!(fleet.reserve(request(1)).unwrap().worker_id, 1);
    assert_eq!(calls.load(Ordering::Relaxed), 3, "then it is booked");
    assert_eq!(fleet.bookings(), [(1, 0, 2), (2, 0, 4)]);
    // A change of another rank does not count, nor does any change to a query.
    let (fleet, calls) = meddling(1, |core, _| core.free_reservation("c0").unwrap());
    fleet.reserve(request(1)).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let (fleet, calls) = meddling(1, free);
    fleet.select(request(1)).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn a_chosen_rank_that_left_is_not_booked() {
    let (fleet, calls) = meddling(1, |core, _| _ = core.delete_worker(1).unwrap());
    assert_eq!(fleet.reserve(request(1)).unwrap().worker_id, 2);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    let (fleet, _) = meddling(1, |core, _| {
        core.delete_worker(1).unwrap();
        core.delete_worker(2).unwrap();
    });
    let error = fleet.reserve(request(1)).unwrap_err();
    assert_eq!(error.to_string(), "no endpoints available to route work");
}

#[test]
fn a_burst_is_spread_evenly() {
    let fleet = Fleet::new(&[1, 2, 3, 4], || policy(vec![], vec![active_requests()], lowest()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| _ = fleet.reserve(request(1)).unwrap()));
        }
    });
    assert_eq!(fleet.bookings(), [(1, 0, 50), (2, 0, 50), (3, 0, 50), (4, 0, 50)]);
}

#[test]
fn a_reload_loses_no_request_and_no_booking() {
    let registry = pointsman::plugins::router_plugin_registry();
    let fleet =
        Fleet::with(KvRouterConfig::default(), Plugins::Registry { registry: &registry, role: Default::default() });
    [1, 2, 3].into_iter().for_each(|id| fleet.worker(id, json!({})));
    let kinds = ["least-loaded", "dynamo-default-cost-fn", "round-robin", "dynamo-two-tier-cost-fn", "random"];
    std::thread::scope(|scope| {
        let requests = (0..3).map(|_| scope.spawn(|| (0..200).for_each(|_| _ = fleet.reserve(request(1)).unwrap())));
        let requests: Vec<_> = requests.collect();
        for kind in kinds.iter().cycle().take(50) {
            let config = configured("x", [instance("x", kind, json!({}))]);
            let plugins = Plugins::Registry { registry: &registry, role: Default::default() };
            fleet.core.replace_policies(&config, &plugins).unwrap();
        }
        requests.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(fleet.bookings().iter().map(|row| row.2).sum::<u64>(), 600);
}

#[test]
fn trust_of_the_index_is_an_input() {
    use pointsman::plugins::worker_selection::Trust;
    let seen = Seen::new();
    let fleet = Fleet::new(&[1, 2], {
        let seen = seen.clone();
        move || {
            let seen = seen.clone();
            let look = picker(WorkerInputs::CACHE, move |_, input| {
                seen.push(input.cache().unwrap().iter().map(|cache| cache.trust()).collect::<Vec<_>>());
                Ok(0)
            });
            let drop_none = filter(WorkerInputs::NONE, |_, candidate| Ok(candidate.worker().worker_id != 1));
            policy(vec![drop_none], vec![], look)
        }
    });
    fleet.select(request(1)).unwrap();
    assert_eq!(seen.take(), [vec![Trust::Unknown]]);
    fleet.say(2, Trust::Partial);
    fleet.select(request(1)).unwrap();
    assert_eq!(seen.take(), [vec![Trust::Partial]], "the row moved with its trust");
    fleet.worker(3, json!({}));
    fleet.say(3, Trust::Complete);
    fleet.select(request(1)).unwrap();
    assert_eq!(seen.take(), [vec![Trust::Partial, Trust::Complete]]);
}
