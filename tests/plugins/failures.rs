//! What goes wrong in a plugin costs that request, is counted, and harms nothing else.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use pointsman::{
    KvRouterConfig, WorkerInputs, WorkerSelectionPolicy, WorkerSelectionPolicyError,
    plugins::{PluginComponent, RouterPluginRegistry, WorkerSelectionPolicyProviderError},
    selection::core::{PartitionFilter, Plugins},
};
use serde_json::json;

use super::{
    registry::{configured, instance},
    support::{Fleet, active_requests, factory, filter, lowest, picker, policy, request, scorer},
};

/// What a component does while its switch is on.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Panic,
    Error,
}

/// A switch, and how many policies were made.
#[derive(Clone, Default)]
struct Rig {
    on: Arc<AtomicBool>,
    made: Arc<AtomicU32>,
}

impl Rig {
    fn fault(&self, fault: Fault) -> Result<(), WorkerSelectionPolicyError> {
        match self.on.load(Ordering::Relaxed) {
            true if fault == Fault::Panic => panic!("injected"),
            true => Err(WorkerSelectionPolicyError::failed("injected")),
            false => Ok(()),
        }
    }

    /// A policy that goes wrong in one component, and chooses its workers in turn otherwise.
    fn policy(&self, component: PluginComponent, fault: Fault) -> WorkerSelectionPolicy {
        self.made.fetch_add(1, Ordering::Relaxed);
        if component == PluginComponent::Factory {
            assert!(!self.on.load(Ordering::Relaxed), "injected");
        }
        let at = |here: PluginComponent| {
            let rig = self.clone();
            move || if here == component { rig.fault(fault) } else { Ok(()) }
        };
        let (keep, score, pick) =
            (at(PluginComponent::Filter), at(PluginComponent::Scorer), at(PluginComponent::Picker));
        let mut turn = 0;
        policy(
            vec![
                filter(WorkerInputs::NONE, |_, _| Ok(true)),
                filter(WorkerInputs::NONE, move |_, _| keep().map(|()| true)),
            ],
            vec![
                active_requests(),
                scorer(WorkerInputs::NONE, move |_, _, costs| {
                    costs.fill(1.0);
                    score()
                }),
            ],
            picker(WorkerInputs::NONE, move |context, input| {
                pick()?;
                turn += usize::from(!context.is_query());
                Ok((turn + input.candidates().len() - 1) % input.candidates().len())
            }),
        )
    }
}

fn fleet(component: PluginComponent, fault: Fault) -> (Fleet, Rig) {
    let rig = Rig::default();
    let fleet = Fleet::new(&[1, 2, 3], {
        let rig = rig.clone();
        move || rig.policy(component, fault)
    });
    fleet.worker(9, json!({"model_name": "other"}));
    (fleet, rig)
}

fn other() -> pointsman::selection::request::SelectRequest {
    pointsman::selection::request::SelectRequest { model_name: "other".into(), ..request(1) }
}

fn chosen(fleet: &Fleet) -> u64 {
    fleet.reserve(request(2)).unwrap().worker_id
}

#[test]
fn a_panic_costs_its_request_and_the_instance() {
    use PluginComponent::{Filter, Picker, Scorer};
    for (component, place) in [(Filter, 1), (Scorer, 1), (Picker, 0)] {
        let (fleet, rig) = fleet(component, Fault::Panic);
        assert_eq!([chosen(&fleet), chosen(&fleet)], [1, 2]);
        let made = rig.made.load(Ordering::Relaxed);
        let before = fleet.bookings();
        rig.on.store(true, Ordering::Relaxed);
        for attempt in 0..2 {
            let error = fleet.reserve(request(2)).unwrap_err();
            let name = component.as_str();
            let text = format!("worker selection policy panicked in {name} {place}: injected");
            assert_eq!((error.to_string(), error.reason()), (text, "internal"), "attempt {attempt}");
            assert!(fleet.core.failing_partitions().iter().any(|key| &*key.model_name == "m"));
        }
        assert_eq!(fleet.bookings(), before, "nothing is booked, nothing is lost");
        assert_eq!(fleet.core.plugin_failures().panics(component), 2);
        assert!(PluginComponent::ALL.iter().all(|&other| fleet.core.plugin_failures().errors(other) == 0));
        rig.on.store(false, Ordering::Relaxed);
        fleet.reserve(other()).unwrap();
        // A new instance begins anew, once for each panic.
        assert_eq!([chosen(&fleet), chosen(&fleet)], [1, 2]);
        assert_eq!(rig.made.load(Ordering::Relaxed) - made, 2);
        assert!(fleet.core.failing_partitions().is_empty());
    }
}

#[test]
fn an_error_costs_its_request_and_leaves_the_state() {
    use PluginComponent::{Filter, Picker, Scorer};
    for component in [Filter, Scorer, Picker] {
        let (fleet, rig) = fleet(component, Fault::Error);
        assert_eq!([chosen(&fleet), chosen(&fleet)], [1, 2]);
        let made = rig.made.load(Ordering::Relaxed);
        rig.on.store(true, Ordering::Relaxed);
        let error = fleet.reserve(request(2)).unwrap_err();
        assert_eq!(error.to_string(), "worker selection policy failed: injected");
        assert_eq!(error.reason(), "internal");
        rig.on.store(false, Ordering::Relaxed);
        assert_eq!(chosen(&fleet), 3, "the turn was kept");
        assert_eq!(rig.made.load(Ordering::Relaxed), made);
        let counted = fleet.core.plugin_failures();
        assert_eq!((counted.errors(component), counted.panics(component)), (1, 0));
        assert!(fleet.core.failing_partitions().is_empty());
    }
}

#[test]
fn wrong_costs_and_rows_are_counted_as_errors() {
    let fleet = Fleet::new(&[1], || policy(vec![], vec![scorer(WorkerInputs::NONE, |_, _, _| Ok(()))], lowest()));
    fleet.reserve(request(1)).unwrap_err();
    assert_eq!(fleet.core.plugin_failures().errors(PluginComponent::Scorer), 1);
    let fleet = Fleet::new(&[1], || policy(vec![], vec![], picker(WorkerInputs::NONE, |_, _| Ok(usize::MAX))));
    fleet.reserve(request(1)).unwrap_err();
    assert_eq!(fleet.core.plugin_failures().errors(PluginComponent::Picker), 1);
}

#[test]
fn a_factory_that_panics_fails_requests_until_it_does_not() {
    let rig = Rig::default();
    rig.on.store(true, Ordering::Relaxed);
    let fleet = Fleet::new(&[1, 2, 3], {
        let rig = rig.clone();
        move || rig.policy(PluginComponent::Factory, Fault::Panic)
    });
    let counted = Arc::clone(fleet.core.plugin_failures());
    let before = counted.panics(PluginComponent::Factory);
    assert!(before >= 1, "it was asked when the partition came");
    let error = fleet.reserve(request(1)).unwrap_err();
    assert_eq!(error.to_string(), "worker selection policy factory panicked: injected");
    assert_eq!(counted.panics(PluginComponent::Factory), before + 1);
    rig.on.store(false, Ordering::Relaxed);
    assert_eq!([chosen(&fleet), chosen(&fleet)], [1, 2]);
}

#[test]
fn a_partition_that_panicked_is_tried_by_the_tick() {
    let (fleet, rig) = fleet(PluginComponent::Scorer, Fault::Panic);
    rig.on.store(true, Ordering::Relaxed);
    fleet.reserve(request(1)).unwrap_err();
    rig.on.store(false, Ordering::Relaxed);
    let partition = fleet.core.partitions(&PartitionFilter::default()).remove(0);
    assert!(partition.is_failing());
    while partition.is_failing() {
        fleet.core.tick();
        std::thread::yield_now();
    }
    assert_eq!(chosen(&fleet), 1, "the trial is a query");
}

#[test]
fn providers_that_fail_or_panic_stop_the_start() {
    let mut registry =
        RouterPluginRegistry::default().with_default_factory(factory(|| policy(vec![], vec![], lowest())));
    let refuses = |_: &_| Err(WorkerSelectionPolicyProviderError::new("no good"));
    registry.register_worker_selection("refuses", Arc::new(refuses)).unwrap();
    registry.register_worker_selection("panics", Arc::new(|_| panic!("injected"))).unwrap();
    for (kind, text) in [
        ("refuses", "invalid parameters for worker-selection policy type \"refuses\": no good (instance at p.yaml:3)"),
        (
            "panics",
            "invalid parameters for worker-selection policy type \"panics\": provider panicked: injected (instance at p.yaml:3)",
        ),
    ] {
        let config = configured("x", [instance("x", kind, json!({}))]);
        assert_eq!(registry.resolve(&config).err().unwrap().to_string(), text);
        let plugins = Plugins::Registry { registry: &registry, role: Default::default() };
        let core = pointsman::selection::SelectionCore::try_new_with_plugins(
            config,
            Arc::new(pointsman::selection::moment::SystemClock::default()),
            Arc::new(pointsman::selection::ingest::NoEventSources),
            plugins,
        );
        assert_eq!(core.err().unwrap().to_string(), text);
    }
}

#[test]
fn a_reload_that_fails_keeps_what_there_is() {
    let mut registry = RouterPluginRegistry::default();
    registry.register_worker_selection("panics", Arc::new(|_| panic!("injected"))).unwrap();
    let first = Arc::new(|_: &_| Ok(factory(|| policy(vec![], vec![], picker(WorkerInputs::NONE, |_, _| Ok(0))))));
    registry.register_worker_selection("first", first).unwrap();
    let plugins = Plugins::Registry { registry: &registry, role: Default::default() };
    let fleet = Fleet::with(configured("a", [instance("a", "first", json!({}))]), plugins);
    (1..=3).for_each(|id| fleet.worker(id, json!({})));
    assert_eq!([chosen(&fleet), chosen(&fleet)], [1, 1]);
    let plugins = Plugins::Registry { registry: &registry, role: Default::default() };
    let broken = configured("b", [instance("b", "panics", json!({}))]);
    fleet.core.replace_policies(&broken, &plugins).unwrap_err();
    assert_eq!(fleet.core.plugin_failures().panics(PluginComponent::Provider), 1);
    assert_eq!(chosen(&fleet), 1);
    fleet.core.replace_policies(&KvRouterConfig::default(), &plugins).unwrap();
    assert_ne!(chosen(&fleet), 1, "the default cost avoids the busy one");
    assert_eq!(fleet.bookings().iter().map(|row| row.2).sum::<u64>(), 4, "bookings stay");
}
