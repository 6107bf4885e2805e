//! Order of events and of classifications, under random histories and between threads; the registry.

use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Instant,
};

use super::{
    ClassifierHost, ClassifierLimits, HostParts, Inquiry,
    config::{RequestClassifierConfig, RequestClassifierParameters, RequestClassifierProviderError},
    lifecycle::RequestLifecycle,
    request::RequestFacts,
    testing::{Drivers, Probe},
};
use crate::selection::{
    SelectionConfig, SelectionError, WorkerWithDpRank,
    moment::SystemClock,
    policy::{classifier::ClassifierRuntime, registry::RouterPluginRegistry},
    testing::{ManualClock, block_on},
};

fn facts() -> RequestFacts {
    RequestFacts {
        input_tokens: 10,
        cached_tokens: 0,
        ingress_at: Instant::now(),
        policy_class: None,
        session: None,
        pinned_worker: None,
        sequence: None,
    }
}

fn host(probe: &Probe, limits: ClassifierLimits) -> Arc<ClassifierHost> {
    ClassifierHost::new(HostParts {
        classifier: Box::new(probe.clone()),
        limits,
        clock: Arc::new(ManualClock::default()),
        counts: Arc::default(),
    })
}

/// What must hold of everything that was noted: for each id, each classification is followed by its events and one last
/// one before the next, and nothing comes after a last one but a classification or an event of a new lifecycle.
fn check_order(notes: &[String], lifecycles: &HashMap<String, usize>) {
    let mut open: HashSet<&str> = HashSet::new();
    let mut ends: HashMap<&str, usize> = HashMap::new();
    for note in notes {
        let mut words = note.split(' ');
        let (Some(what), Some(id)) = (words.next(), words.next()) else { panic!("{note}") };
        match what {
            "classify" => assert!(open.insert(id), "classified before the end before was heard: {note}"),
            "sent" | "responding" => {
                open.insert(id);
            }
            "completed" | "aborted" => {
                open.remove(id);
                *ends.entry(id).or_default() += 1;
            }
            other => panic!("{other}"),
        }
    }
    assert!(open.is_empty(), "no last event: {open:?}");
    for (id, count) in lifecycles {
        assert_eq!(ends.get(&**id), Some(count), "last events of {id}");
    }
}

type Call = Pin<Box<dyn Future<Output = Result<super::Classified, SelectionError>> + Send>>;

struct Live {
    id: String,
    lifecycle: Option<RequestLifecycle>,
    call: Option<Call>,
    /// Once: of two calls, what was noted would not tell which was given up.
    asked: bool,
    classified: bool,
}

/// Random histories of a few ids: registered, classified by calls that may wait, sent, retried and ended in every order,
/// with a driver that runs now and then.
#[test]
fn random_histories_keep_order() {
    let seeds = std::env::var("POINTSMAN_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    for seed in 0..seeds {
        let notes = std::panic::catch_unwind(|| history(seed));
        assert!(notes.is_ok(), "seed {seed}");
    }
}

fn history(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let gate = Arc::new(AtomicBool::new(false));
    let opened = Arc::clone(&gate);
    let probe = Probe::with(move |request| {
        let (gate, slow) = (Arc::clone(&opened), request.input_tokens() == 10 && request.request_id() == Some("slow"));
        Box::pin(std::future::poll_fn({
            let mut request = Some(request);
            move |_| match gate.load(Ordering::SeqCst) || !slow {
                true => Poll::Ready(Ok(request.take().expect("polled once more"))),
                false => Poll::Pending,
            }
        }))
    });
    let host = host(&probe, ClassifierLimits { max_events: 4, ..ClassifierLimits::default() });
    let drivers = Drivers::default();
    drivers.drive(Arc::clone(&host).driver());
    let exclusive = rng.bool();
    let mut lifecycles: HashMap<String, usize> = HashMap::new();
    let mut live: Vec<Live> = Vec::new();
    let worker = WorkerWithDpRank::new(1, 0);
    for _ in 0..200 {
        gate.store(rng.u8(0..3) == 0, Ordering::SeqCst);
        let at = if live.is_empty() { 0 } else { rng.usize(..live.len()) };
        match rng.u8(0..9) {
            0 | 1 => {
                let id = *["a", "b", "slow"].get(rng.usize(0..3)).expect("in range");
                let known = live.iter().any(|live| live.id == id && live.lifecycle.is_some());
                match host.register(id.into(), exclusive) {
                    Ok(lifecycle) => {
                        assert!(!(exclusive && known), "{id} is live");
                        *lifecycles.entry(id.to_owned()).or_default() += 1;
                        live.push(Live {
                            id: id.to_owned(),
                            lifecycle: Some(lifecycle),
                            call: None,
                            asked: false,
                            classified: false,
                        });
                    }
                    Err(_) => assert!(exclusive && known, "{id} is not live"),
                }
            }
            2 | 3 => {
                if let Some(Live { lifecycle: Some(lifecycle), call, asked: asked @ false, .. }) = live.get_mut(at) {
                    *asked = true;
                    let (host, key) = (Arc::clone(&host), lifecycle.key());
                    let inquiry = Inquiry { key, facts: facts(), deadline: None };
                    *call = Some(Box::pin(async move { host.classify(inquiry, |_| true).await }));
                }
            }
            4 => {
                if let Some(Live { lifecycle: Some(lifecycle), classified: true, .. }) = live.get_mut(at) {
                    lifecycle.sent(worker);
                    lifecycle.responding();
                    lifecycle.observe_output_tokens(3);
                    if rng.bool() {
                        lifecycle.prepare_retry();
                    }
                }
            }
            5 => {
                if let Some(live) = live.get_mut(at)
                    && let Some(mut lifecycle) = live.lifecycle.take()
                {
                    match rng.u8(0..3) {
                        0 => lifecycle.complete(),
                        1 => lifecycle.abort(None),
                        _ => {}
                    }
                }
            }
            6 => {
                if let Some(live) = live.get_mut(at) {
                    live.call = None;
                }
            }
            _ => {
                drivers.run();
            }
        }
        for live in &mut live {
            if let Some(call) = &mut live.call
                && let Poll::Ready(outcome) = call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                live.call = None;
                match outcome {
                    Ok(_) => live.classified = true,
                    // It ended, or an id that is live twice is asked about through the wrong one.
                    Err(error) => assert!(live.lifecycle.is_none(), "{error}"),
                }
            }
        }
        live.retain(|live| live.lifecycle.is_some() || live.call.is_some());
    }
    drop(live);
    drivers.run();
    assert_eq!(host.size(), (0, 0));
    check_order(&probe.notes(), &lifecycles);
    host.retire();
    assert_eq!(drivers.run(), 0);
}

/// Threads that each take requests of a few shared ids from beginning to end, and one that delivers.
#[test]
fn threads_keep_order() {
    let probe = Probe::passing();
    let host = ClassifierHost::new(HostParts {
        classifier: Box::new(probe.clone()),
        limits: ClassifierLimits { max_events: 64, ..ClassifierLimits::default() },
        clock: Arc::new(SystemClock::default()),
        counts: Arc::default(),
    });
    let lifecycles: Arc<parking_lot::Mutex<HashMap<String, usize>>> = Arc::default();
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let driver = Arc::clone(&host).driver();
        scope.spawn(|| block_on(driver));
        let workers: Vec<_> = (0..4)
            .map(|thread| {
                let (host, lifecycles, refused) = (&host, &lifecycles, &refused);
                scope.spawn(move || {
                    let worker = WorkerWithDpRank::new(thread, 0);
                    for round in 0..500 {
                        let id = format!("r{}", round % 3);
                        let Ok(mut lifecycle) = host.register(id.as_str().into(), true) else {
                            refused.fetch_add(1, Ordering::Relaxed);
                            std::thread::yield_now();
                            continue;
                        };
                        *lifecycles.lock().entry(id).or_default() += 1;
                        let inquiry = Inquiry { key: lifecycle.key(), facts: facts(), deadline: None };
                        block_on(host.classify(inquiry, |_| true)).expect("nothing ends it");
                        lifecycle.sent(worker);
                        lifecycle.responding();
                        if round % 2 == 0 {
                            lifecycle.complete();
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
        host.retire();
    });
    assert_eq!(host.size(), (0, 0));
    check_order(&probe.notes(), &lifecycles.lock());
    assert!(lifecycles.lock().values().sum::<usize>() >= 3, "{} were refused", refused.into_inner());
}

fn configured(classifier_type: &str) -> SelectionConfig {
    let classifier = RequestClassifierConfig {
        classifier_type: classifier_type.to_owned(),
        parameters: RequestClassifierParameters::default(),
    };
    SelectionConfig { request_classifier: Some(Arc::new(classifier)), ..SelectionConfig::default() }
}

/// A case of the plugin contract.
#[test]
fn resolve_classifier_unknown() {
    let mut registry = RouterPluginRegistry::default();
    let failed = |registry: &RouterPluginRegistry| {
        registry.resolve_request_classifier(&configured("c")).err().expect("it is not linked").to_string()
    };
    assert_eq!(failed(&registry), "unknown request-classifier type \"c\"; linked classifier types: <none>");
    for name in ["z", "a"] {
        let factory = Probe::passing().factory();
        registry.register_request_classifier(name, Arc::new(move |_| Ok(factory.clone()))).expect("free");
    }
    assert_eq!(failed(&registry), "unknown request-classifier type \"c\"; linked classifier types: a, z");
}

#[test]
fn types_are_registered_once_and_under_a_name() {
    let mut registry = RouterPluginRegistry::default();
    let factory = Probe::passing().factory();
    let mut register = |name: &str| {
        let factory = factory.clone();
        registry.register_request_classifier(name, Arc::new(move |_| Ok(factory.clone()))).map_err(|e| e.to_string())
    };
    assert_eq!(register("c"), Ok(()));
    assert_eq!(register("c"), Err("request-classifier type \"c\" is already registered".to_owned()));
    assert_eq!(register(""), Err("request-classifier type must not be empty".to_owned()));
    let reserved = "request-classifier type 'default' is reserved for Dynamo's pass-through behavior";
    assert_eq!(register("default"), Err(reserved.to_owned()));
    assert!(!registry.is_empty());
    let plugins = registry.resolve_plugins(&configured("c")).expect("it is linked");
    assert!(plugins.has_custom_plugins() && !plugins.has_custom_worker_selection() && !plugins.is_empty());
    assert!(registry.resolve_request_classifier(&SelectionConfig::default()).expect("nothing to do").is_none());
}

#[test]
fn providers_that_refuse_or_panic_are_errors_of_the_configuration() {
    let mut registry = RouterPluginRegistry::default();
    let refuse = |_: &RequestClassifierParameters| Err(RequestClassifierProviderError::new("no"));
    registry.register_request_classifier("refuses", Arc::new(refuse)).expect("free");
    registry.register_request_classifier("panics", Arc::new(|_| panic!("oh"))).expect("free");
    let text = |name| registry.resolve_request_classifier(&configured(name)).err().expect("refused").to_string();
    assert_eq!(text("refuses"), "invalid parameters for request-classifier type \"refuses\": no");
    assert_eq!(text("panics"), "invalid parameters for request-classifier type \"panics\": provider panicked: oh");
}
