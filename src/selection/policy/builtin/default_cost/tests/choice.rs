//! Which of equal ranks is taken, what a temperature does, who is eligible, and what an explanation says.

use super::*;

/// Sum of squared deviations from the expected counts, over them.
fn chi_square(counts: &[u64], expected: impl Fn(usize) -> f64) -> f64 {
    let terms = counts.iter().enumerate();
    terms.map(|(at, &count)| (count as f64 - expected(at)).powi(2) / expected(at)).sum()
}

/// How often each worker, from 1 on, is picked.
fn histogram(fleet: &mut Fleet, ask: &Ask, picks: u64) -> Vec<u64> {
    let mut counts = vec![0; fleet.load.len()];
    (0..picks).for_each(|_| counts[fleet.winner(ask) as usize - 1] += 1);
    counts
}

/// Ties are drawn uniformly, with 99.99 % bounds on chi-square at a fixed seed.
#[test]
fn ties_are_uniform() {
    // Idle fleets: priced whole, and sampled.
    for (workers, bound) in [(2, 15.2), (4, 21.1), (40, 83.8), (120, 185.0)] {
        let mut fleet = Fleet::new(DEFAULTS, 16, workers);
        let counts = histogram(&mut fleet, &ask(64), workers * 200);
        let found = chi_square(&counts, |_| 200.0);
        assert!(found < bound, "{workers} workers: {found}");
    }
    // Half the ranks have the prompt's first block cached, a wide class: the choice is among them.
    let mut fleet = Fleet::new(DEFAULTS, 16, 40);
    let blocks = TierBlocks { device: 1, ..TierBlocks::default() };
    let even = (1..=40).filter(|worker| worker % 2 == 0);
    let lanes = LaneSet::List(even.map(|worker| fleet.slot(worker) as u16 + 3).collect());
    fleet.matches.classes.push(MatchClass { blocks, lanes });
    let counts = histogram(&mut fleet, &ask(64), 4000);
    let odd: u64 = counts.iter().step_by(2).sum();
    let even: Vec<u64> = counts.into_iter().skip(1).step_by(2).collect();
    assert_eq!(odd, 0);
    assert!(chi_square(&even, |_| 200.0) < 51.0, "{even:?}");
    // Two ranks whose cached block makes up for the load they carry tie with an idle fleet, which is sampled.
    let mut fleet = Fleet::new(DEFAULTS, 16, 40);
    for worker in [1, 2] {
        fleet.cached(worker, 1, 0, 0, 0);
        fleet.book(worker, &[worker], 0);
    }
    let counts = histogram(&mut fleet, &ask(64), 8000);
    assert!(chi_square(&counts, |_| 200.0) < 83.8, "{counts:?}");
    // Three of four ranks have a cached block and the load that makes up for it: two cells that tie.
    let mut fleet = Fleet::new(DEFAULTS, 16, 40);
    let loaded: Vec<u64> = (1..=40).filter(|worker| worker % 4 != 0).collect();
    let lanes = LaneSet::List(loaded.iter().map(|&worker| fleet.slot(worker) as u16 + 3).collect());
    fleet.matches.classes.push(MatchClass { blocks, lanes });
    for worker in loaded {
        fleet.book(worker, &[worker], 0);
    }
    let counts = histogram(&mut fleet, &ask(64), 8000);
    assert!(chi_square(&counts, |_| 200.0) < 83.8, "{counts:?}");
}

#[test]
fn costs_that_differ_by_less_than_a_key_of_the_slices_are_told_apart() {
    let parameters = DefaultCostParameters { decode_active_request_weight: 1e-7, ..DEFAULTS };
    let mut fleet = Fleet::new(parameters, 16, 40);
    let lanes = LaneSet::List((1..=30).map(|worker| fleet.slot(worker) as u16 + 3).collect());
    fleet.matches.classes.push(MatchClass { blocks: TierBlocks { device: 2, ..TierBlocks::default() }, lanes });
    for worker in 1..=30 {
        (0..1 + worker % 2).for_each(|_| _ = fleet.book(worker, &[worker], 0));
    }
    for _ in 0..100 {
        let winner = fleet.winner(&ask(64));
        assert!(winner <= 30 && winner.is_multiple_of(2), "{winner}");
    }
}

#[test]
fn four_idle_workers_share_cold_prompts() {
    let mut fleet = Fleet::new(DEFAULTS, 16, 4);
    let mut counts = [0; 4];
    for prompt in 0..400u64 {
        let cold = Ask { sequence: (0..4).map(|block| prompt * 100 + block).collect(), ..ask(64) };
        let worker = fleet.winner(&cold);
        counts[worker as usize - 1] += 1;
        let booking = fleet.book(worker, &cold.sequence, 64);
        assert!(fleet.load.free(booking, Moment(0)));
    }
    assert!(counts.iter().all(|count| (60..=140).contains(count)), "{counts:?}");
}

#[test]
fn temperature_softens_by_position_in_the_range() {
    // Costs 6, 5.5 and 6.5; the recorded shares at four temperatures.
    let cases = [
        (0.2, [0.0754, 0.9184, 0.0062]),
        (0.5, [0.2447, 0.6652, 0.09]),
        (1.0, [0.3072, 0.5065, 0.1863]),
        (4.0, [0.3316, 0.3758, 0.2926]),
    ];
    for (temperature, shares) in cases {
        let mut fleet = Fleet::new(DEFAULTS, 16, 3);
        fleet.cached(1, 2, 0, 0, 0);
        fleet.cached(2, 1, 2, 0, 0);
        fleet.cached(3, 1, 0, 2, 0);
        // An override of the request acts like the setting.
        let overrides = Some(RouterConfigOverride { router_temperature: Some(temperature), ..Default::default() });
        let counts = histogram(&mut fleet, &Ask { overrides, ..ask(64) }, 4000);
        let found = chi_square(&counts, |worker| 4000.0 * shares[worker]);
        assert!(found < 18.4, "temperature {temperature}: {counts:?}");
    }
    // Equal costs: uniform. One candidate: that one. Extreme costs and temperatures: still somebody.
    let hot = DefaultCostParameters { router_temperature: 1e-300, ..DEFAULTS };
    let counts = histogram(&mut Fleet::new(hot, 16, 3), &ask(64), 3000);
    assert!(chi_square(&counts, |_| 1000.0) < 18.4, "{counts:?}");
    let extreme = DefaultCostParameters { router_temperature: f64::MAX, prefill_load_scale: 1e300, ..DEFAULTS };
    let mut fleet = Fleet::new(extreme, 16, 2);
    fleet.book(1, &[], u64::MAX);
    assert!(fleet.pick(&ask(64)).is_ok());
}

fn unavailable() -> SelectionError {
    SelectionError::Unavailable("no endpoints available to route work".to_owned())
}

fn not_allowed(worker: u64) -> SelectionError {
    SelectionError::BadRequest(format!("pinned worker {worker} is not in allowed worker set"))
}

#[test]
fn eligibility_and_its_errors() {
    let mut fleet = Fleet::new(DEFAULTS, 16, 5);
    let taints = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
    fleet.facts(1, |facts| facts.taints = taints(&["gpu=h100"]));
    fleet.facts(2, |facts| facts.taints = taints(&["gpu=h100", "zone=a"]));
    fleet.facts(3, |facts| facts.taints = taints(&["zone=a"]));
    fleet.facts(5, |facts| facts.draining = true);
    let requiring = |names: &[&str]| {
        let constraints = RoutingConstraints { required_taints: taints(names), ..Default::default() };
        Ask { constraints, ..ask(64) }
    };
    let pin = |worker, rank| Some(WorkerWithDpRank::new(worker, rank));
    let affinity = |worker_id, dp_rank| Some(AffinityTarget { worker_id, dp_rank });
    let allowed = |workers: &[u64]| Some(workers.iter().copied().collect::<BTreeSet<u64>>());

    assert_eq!(fleet.winner(&requiring(&["gpu=h100", "zone=a"])), 2);
    let zone_z = requiring(&["zone=z"]);
    let impossible = [
        ("no such taint", zone_z.clone()),
        ("allowed and taints disagree", Ask { allowed: allowed(&[1]), ..requiring(&["zone=a"]) }),
        ("nobody allowed", Ask { allowed: allowed(&[]), ..ask(64) }),
        ("unknown allowed", Ask { allowed: allowed(&[99]), ..ask(64) }),
        ("draining", Ask { allowed: allowed(&[5]), ..ask(64) }),
        ("pin without the taint", Ask { pin: pin(1, 0), ..requiring(&["zone=a"]) }),
        ("unknown pin", Ask { pin: pin(99, 0), ..ask(64) }),
        ("unknown rank", Ask { pin: pin(1, 1), ..ask(64) }),
        ("draining pin", Ask { pin: pin(5, 0), ..ask(64) }),
    ];
    for (name, ask) in impossible {
        assert_eq!(fleet.pick(&ask).unwrap_err(), unavailable(), "{name}");
    }
    let contradictory = [
        Ask { pin: pin(1, 0), allowed: allowed(&[2]), ..ask(64) },
        Ask { pin: pin(1, 0), affinity: affinity(2, None), ..ask(64) },
        Ask { pin: pin(99, 0), allowed: allowed(&[2]), ..ask(64) },
    ];
    for ask in contradictory {
        assert_eq!(fleet.pick(&ask).unwrap_err(), not_allowed(ask.pin.unwrap().worker_id));
    }
    // A target is exclusive while eligible, whatever it costs, and ignored otherwise.
    fleet.book(3, &[1, 2, 3], 1000);
    assert_eq!(fleet.winner(&Ask { affinity: affinity(3, None), ..ask(64) }), 3);
    assert_eq!(fleet.winner(&Ask { affinity: affinity(3, Some(0)), pin: pin(3, 0), ..ask(64) }), 3);
    for target in [affinity(5, None), affinity(99, None), affinity(3, Some(7))] {
        assert_ne!(fleet.winner(&Ask { affinity: target, ..ask(64) }), 3);
        assert_eq!(fleet.winner(&Ask { affinity: target, pin: pin(1, 0), ..ask(64) }), 1);
    }
    assert_eq!(fleet.winner(&Ask { affinity: affinity(3, None), ..requiring(&["gpu=h100", "zone=a"]) }), 2);
    assert_eq!(Fleet::new(DEFAULTS, 16, 0).pick(&ask(64)).unwrap_err(), unavailable());
    for weight in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let preferred_taints = [("zone=a".to_owned(), weight)].into();
        let constraints = RoutingConstraints { preferred_taints, ..Default::default() };
        let error = fleet.pick(&Ask { constraints, ..ask(64) }).unwrap_err();
        assert_eq!(error.reason(), "bad_request", "{weight}");
    }
}

#[test]
fn an_explanation_accounts_for_every_rank() {
    let mut fleet = Fleet::new(DEFAULTS, 16, 5);
    fleet.facts(1, |facts| facts.taints = BTreeSet::from(["fast".to_owned()]));
    fleet.facts(4, |facts| facts.draining = true);
    fleet.cached(2, 1, 1, 1, 1);
    fleet.book(2, &ask(32).sequence, 40);
    let constraints = RoutingConstraints { preferred_taints: [("fast".to_owned(), 0.5)].into(), ..Default::default() };
    let prompt = Ask { constraints, allowed: Some(BTreeSet::from([1, 2, 3, 4])), explain: true, ..ask(64) };
    let picked = fleet.pick(&prompt).unwrap();
    let explained = picked.explanation.unwrap();
    assert_eq!((explained.policy.as_str(), explained.ties, explained.runner_up), ("default", 1, Some((3, 0))));
    let verdicts: Vec<(u64, &str)> = explained.candidates.iter().map(|row| (row.worker_id, row.verdict)).collect();
    let expected = [(1, "eligible"), (2, "eligible"), (3, "eligible"), (4, "draining"), (5, "not_allowed")];
    assert_eq!(verdicts, expected);
    for row in &explained.candidates {
        let sum: f64 = row.cost_terms.iter().map(|term| term.1).sum();
        assert!(row.cost.is_none_or(|cost| (cost - sum).abs() < 1e-12), "{row:?}");
        assert_eq!(row.cost.is_some(), row.verdict == "eligible");
    }
    let second = &explained.candidates[1];
    assert_eq!(second.cached_blocks, [1, 1, 1, 1]);
    let load =
        (second.active_prefill_tokens, second.active_blocks, second.active_requests, second.shared_active_blocks);
    assert_eq!(load, (40, 2, 1, 2));
    assert_eq!(second.cost_terms[0], ("prefill".into(), 6.5 - 1.0 - 0.75 - 0.5));
    assert_eq!(explained.candidates[0].cost_terms[3].0, "preferred_taints");
    let pinned = fleet.pick(&Ask { pin: Some(WorkerWithDpRank::new(3, 0)), ..prompt.clone() }).unwrap();
    let verdicts: Vec<&str> = pinned.explanation.unwrap().candidates.iter().map(|row| row.verdict).collect();
    assert_eq!(verdicts, ["not_pinned", "not_pinned", "eligible", "not_pinned", "not_pinned"]);
}

/// The work of a pick does not grow with the fleet.
#[test]
fn few_ranks_are_looked_at() {
    for (name, load_of, most) in [
        ("idle", (|_| 0) as fn(u64) -> u64, 10),
        ("loaded", |worker| worker.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 5000, 10),
    ] {
        let mut fleet = Fleet::new(DEFAULTS, 16, 5000);
        for worker in 1..=5000 {
            fleet.book(worker, &[], load_of(worker));
        }
        let everybody: Vec<u16> = (3..5003).collect();
        for classes in [vec![], vec![everybody.clone()], vec![everybody[..4500].to_vec()]] {
            fleet.matches.classes.clear();
            for lanes in classes {
                let blocks = TierBlocks { device: 2, ..TierBlocks::default() };
                fleet.matches.classes.push(MatchClass { blocks, lanes: LaneSet::List(lanes) });
            }
            fleet.cached(17, 3, 0, 0, 0);
            fleet.winner(&ask(64));
            let looked_at = fleet.policy.scratch.trace.looked_at;
            assert!(looked_at <= 2 * most, "{name}: {looked_at}");
        }
    }
}
