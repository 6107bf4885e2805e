//! Steps: who runs, who waits, who is preempted.

use super::*;

fn config() -> SchedulerConfig {
    SchedulerConfig {
        block_size: 4,
        num_blocks: 16,
        host_blocks: 0,
        max_batched_tokens: 16,
        max_running: 8,
        hash_seed: 1,
    }
}

fn request(id: u64, prompt: impl IntoIterator<Item = u32>, max_tokens: usize) -> Request {
    Request { id, prompt: prompt.into_iter().collect(), max_tokens, namespace: Namespace::default() }
}

/// Runs until idle; every output in order.
fn run(scheduler: &mut Scheduler) -> Vec<Output> {
    let mut outputs = Vec::new();
    for _ in 0..10_000 {
        let Some(step) = scheduler.step() else { return outputs };
        outputs.extend(step.outputs);
    }
    panic!("the scheduler never became idle");
}

fn finished(outputs: &[Output]) -> Vec<(u64, usize)> {
    outputs.iter().filter(|output| output.finished).map(|output| (output.id, output.cached_tokens)).collect()
}

#[test]
fn a_prompt_is_computed_in_chunks_of_the_budget_and_then_decodes_a_token_a_step() {
    let mut scheduler = Scheduler::new(config());
    scheduler.submit(request(1, 0..40, 3)).unwrap();
    let steps: Vec<Step> = std::iter::from_fn(|| scheduler.step()).collect();
    let shape: Vec<_> = steps.iter().map(|step| (step.prefill_tokens, step.decoding, step.outputs.len())).collect();
    assert_eq!(shape, [(16, 0, 0), (16, 0, 0), (8, 0, 1), (0, 1, 1), (0, 1, 1)]);
    assert!(steps[4].outputs[0].finished);
    assert_eq!((scheduler.running(), scheduler.cache().free()), (0, 16));
}

#[test]
fn stores_are_told_in_the_step_that_computes_them_and_chain() {
    let mut scheduler = Scheduler::new(config());
    scheduler.submit(request(1, 0..18, 1)).unwrap();
    let (first, second) = (scheduler.step().unwrap(), scheduler.step().unwrap());
    let [KvEvent::Stored { hashes, parent: None, tokens, .. }] = &first.events[..] else { panic!("{first:?}") };
    assert_eq!((hashes.len(), tokens.len()), (4, 16));
    assert_eq!(second.events, [], "two tokens fill no block");
}

#[test]
fn output_fills_blocks_too() {
    let mut scheduler = Scheduler::new(config());
    scheduler.submit(request(1, 0..3, 6)).unwrap();
    let mut events = Vec::new();
    let mut tokens: Vec<u32> = (0..3).collect();
    while let Some(step) = scheduler.step() {
        tokens.extend(step.outputs.iter().map(|output| output.token));
        events.extend(step.events);
    }
    assert_eq!(tokens.len(), 9);
    let stored: Vec<_> = events
        .iter()
        .map(|event| match event {
            KvEvent::Stored { tokens, parent, .. } => (tokens.clone(), parent.is_some()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(stored, [(tokens[..4].to_vec(), false), (tokens[4..8].to_vec(), true)]);
}

#[test]
fn a_prefix_is_found_but_never_the_block_of_the_last_token() {
    let mut scheduler = Scheduler::new(config());
    scheduler.submit(request(1, 0..16, 1)).unwrap();
    run(&mut scheduler);
    let prompt: Vec<u32> = (0..16).collect();
    assert_eq!(scheduler.cached_tokens(&prompt, &Namespace::default()), 12);
    scheduler.submit(request(2, 0..16, 1)).unwrap();
    scheduler.submit(request(3, 0..17, 1)).unwrap();
    scheduler.submit(request(4, (0..10).chain(90..96), 1)).unwrap();
    assert_eq!(finished(&run(&mut scheduler)), [(2, 12), (3, 16), (4, 8)]);
}

#[test]
fn requests_of_one_step_share_what_the_first_of_them_computes() {
    let mut scheduler = Scheduler::new(SchedulerConfig { max_batched_tokens: 64, ..config() });
    for id in 0..3 {
        scheduler.submit(request(id, 0..17, 1)).unwrap();
    }
    let step = scheduler.step().unwrap();
    assert_eq!(finished(&step.outputs), [(0, 0), (1, 16), (2, 16)]);
    assert_eq!(step.prefill_tokens, 19);
}

#[test]
fn namespaces_do_not_share() {
    let mut scheduler = Scheduler::new(config());
    let salted = Namespace { cache_salt: Some("t".into()), ..Namespace::default() };
    scheduler.submit(request(1, 0..8, 1)).unwrap();
    scheduler.submit(Request { namespace: salted.clone(), ..request(2, 0..8, 1) }).unwrap();
    assert_eq!(finished(&run(&mut scheduler)), [(1, 0), (2, 0)]);
    let prompt: Vec<u32> = (0..8).collect();
    assert_eq!(scheduler.cached_tokens(&prompt, &salted), 4);
}

#[test]
fn when_blocks_run_out_the_youngest_gives_way_and_all_finish() {
    let mut scheduler = Scheduler::new(SchedulerConfig { num_blocks: 6, ..config() });
    for id in 0..3u32 {
        scheduler.submit(request(id.into(), id * 100..id * 100 + 6, 14)).unwrap();
    }
    let outputs = run(&mut scheduler);
    assert!(scheduler.preemptions() > 0);
    let mut done: Vec<_> = finished(&outputs).into_iter().map(|(id, _)| id).collect();
    assert_eq!(done[0], 0, "the oldest never gives way");
    done.sort_unstable();
    assert_eq!(done, [0, 1, 2]);
    assert_eq!(outputs.len(), 3 * 14, "no token is produced twice");
    assert_eq!(scheduler.cache().free(), 6);
}

#[test]
fn what_can_never_run_is_refused() {
    let mut scheduler = Scheduler::new(config());
    assert_eq!(scheduler.submit(request(1, [], 1)), Err(SubmitError::EmptyPrompt));
    let error = SubmitError::TooLong { needed: 17, available: 16 };
    assert_eq!(scheduler.submit(request(1, 0..60, 6)), Err(error));
    assert_eq!(
        scheduler.submit(request(1, 0..60, usize::MAX)).unwrap_err(),
        SubmitError::TooLong { needed: usize::MAX.div_ceil(4), available: 16 }
    );
    scheduler.submit(request(1, 0..60, 5)).unwrap();
    assert_eq!(run(&mut scheduler).len(), 5);
}

#[test]
fn aborted_requests_give_everything_back() {
    let mut scheduler = Scheduler::new(SchedulerConfig { max_running: 1, ..config() });
    scheduler.submit(request(1, 0..20, 5)).unwrap();
    scheduler.submit(request(2, 0..20, 5)).unwrap();
    scheduler.step().unwrap();
    scheduler.abort(1);
    scheduler.abort(2);
    scheduler.abort(3);
    assert_eq!(scheduler.step(), None);
    assert_eq!((scheduler.running(), scheduler.waiting(), scheduler.cache().free()), (0, 0, 16));
}

#[test]
fn a_clear_is_told_by_itself_and_running_requests_cache_no_orphans() {
    let mut scheduler = Scheduler::new(config());
    scheduler.submit(request(1, 0..8, 6)).unwrap();
    scheduler.step().unwrap();
    scheduler.clear();
    let step = scheduler.step().unwrap();
    assert_eq!(step.events, [KvEvent::Cleared]);
    let rest: Vec<KvEvent> = std::iter::from_fn(|| scheduler.step()).flat_map(|step| step.events).collect();
    assert_eq!(rest, []);
    scheduler.clear();
    assert_eq!(scheduler.step().unwrap().events, [KvEvent::Cleared], "also while idle");
}

#[test]
fn host_blocks_serve_a_prefix_the_device_lost() {
    let mut scheduler = Scheduler::new(SchedulerConfig { num_blocks: 5, host_blocks: 8, ..config() });
    for id in 0..2u32 {
        scheduler.submit(request(id.into(), id * 100..id * 100 + 16, 1)).unwrap();
        run(&mut scheduler);
    }
    scheduler.submit(request(9, 0..17, 1)).unwrap();
    let outputs = run(&mut scheduler);
    assert_eq!(finished(&outputs), [(9, 16)]);
}

#[test]
fn equal_prompts_get_equal_answers_on_every_engine() {
    let answer = |seed| {
        let mut scheduler = Scheduler::new(SchedulerConfig { hash_seed: seed, ..config() });
        scheduler.submit(request(1, 0..9, 5)).unwrap();
        run(&mut scheduler).into_iter().map(|output| output.token).collect::<Vec<_>>()
    };
    assert_eq!(answer(1), answer(2));
    assert!(answer(1).windows(2).any(|pair| pair[0] != pair[1]));
}
