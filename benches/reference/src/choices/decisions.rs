//! Both followers behind the simulated selector, and what is counted at its decisions.

use std::collections::BTreeMap;

use pointsman::{selection::request::SelectRequest, simulation::fleet::FleetEvent};

use super::{ours, theirs};

/// Differences that are described.
const EXAMPLES: usize = 3;

/// What was counted.
#[derive(Default)]
pub struct Decisions {
    /// Requests for which a worker was chosen.
    pub choices: u64,
    /// One worker alone had the lowest cost.
    pub alone: u64,
    /// The reference chose the same worker.
    pub same: u64,
    /// It chose another one of the same lowest cost.
    pub tied: u64,
    /// Neither.
    pub different: u64,
    /// Costs that were compared: at each choice those of the workers chosen, and of one more in turn.
    pub costs: u64,
    /// Those that are not the same number.
    pub other_costs: u64,
    /// The first differences.
    pub examples: Vec<String>,
}

impl Decisions {
    /// Whether every choice and every cost agrees.
    pub fn agree(&self) -> bool {
        self.different == 0 && self.other_costs == 0
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.choices += other.choices;
        self.alone += other.alone;
        self.same += other.same;
        self.tied += other.tied;
        self.different += other.different;
        self.costs += other.costs;
        self.other_costs += other.other_costs;
    }

    /// Compares `chosen` by our selector with `theirs`; of their costs there are at least those two.
    fn compare(
        &mut self,
        id: &str,
        [chosen, theirs]: [u64; 2],
        our_costs: &BTreeMap<u64, f64>,
        their_costs: &BTreeMap<u64, f64>,
    ) {
        let bits = |costs: &BTreeMap<u64, f64>, worker: u64| costs.get(&worker).map(|cost| cost.to_bits());
        let unequal = |worker: &u64| bits(our_costs, *worker) != bits(their_costs, *worker);
        let other_costs: Vec<u64> = their_costs.keys().copied().filter(unequal).collect();
        let lowest = our_costs.values().copied().fold(f64::INFINITY, f64::min);
        let cheapest: Vec<u64> =
            our_costs.iter().filter(|&(_, cost)| *cost == lowest).map(|(worker, _)| *worker).collect();
        // By the figures of both, neither chose a worker that costs more than another one.
        let agreed = cheapest.contains(&chosen)
            && cheapest.contains(&theirs)
            && bits(their_costs, chosen) == bits(their_costs, theirs);
        self.alone += u64::from(cheapest.len() == 1);
        self.choices += 1;
        self.costs += their_costs.len() as u64;
        self.other_costs += other_costs.len() as u64;
        match agreed {
            true if chosen == theirs => self.same += 1,
            true => self.tied += 1,
            false => self.different += 1,
        }
        if (!agreed || !other_costs.is_empty()) && self.examples.len() < EXAMPLES {
            let cost = |worker: u64| format!("{worker} ({:?}, {:?})", our_costs.get(&worker), their_costs.get(&worker));
            let others: Vec<String> = other_costs.into_iter().map(cost).collect();
            self.examples.push(format!(
                "{id}: chosen {}, by the reference {}; workers with other costs: {}",
                cost(chosen),
                cost(theirs),
                others.join(", ")
            ));
        }
    }
}

/// The cores that follow a simulated selector.
pub struct Followers<'a> {
    ours: ours::Follower,
    theirs: theirs::Follower,
    asked: Option<SelectRequest>,
    decisions: &'a mut Decisions,
}

impl<'a> Followers<'a> {
    pub fn new(decisions: &'a mut Decisions) -> Self {
        Self { ours: ours::Follower::new(), theirs: theirs::Follower::new(), asked: None, decisions }
    }

    /// Does to both what was done to the selector.
    pub fn hear(&mut self, event: FleetEvent<'_>) {
        match event {
            FleetEvent::Joined(worker) => {
                self.ours.join(worker);
                self.theirs.join(worker);
            }
            FleetEvent::Stored { worker_id, parent, blocks } => {
                self.ours.store(worker_id, parent, blocks);
                self.theirs.store(worker_id, parent, blocks);
            }
            FleetEvent::Removed { worker_id, names } => {
                self.ours.remove(worker_id, names);
                self.theirs.remove(worker_id, names);
            }
            FleetEvent::Asked { request, .. } => self.asked = Some(request.clone()),
            FleetEvent::Chosen { answer, .. } => {
                let request = self.asked.take().expect("`default` answers at once");
                self.decide(&request, answer.worker_id);
            }
            FleetEvent::PrefillComplete { selection_id, booked, .. } => {
                assert!(booked, "bookings do not expire");
                self.ours.prefill_complete(selection_id);
                self.theirs.prefill_complete(selection_id);
            }
            FleetEvent::Freed { selection_id, booked, .. } => {
                assert!(booked, "bookings do not expire");
                self.ours.free(selection_id);
                self.theirs.free(selection_id);
            }
        }
    }

    fn decide(&mut self, request: &SelectRequest, chosen: u64) {
        let our_costs = self.ours.costs(request);
        let (theirs, cost) = self.theirs.choice(request);
        let mut their_costs = BTreeMap::from([(theirs, cost)]);
        let turn = self.decisions.choices as usize % our_costs.len();
        if let Some(&worker) = our_costs.keys().nth(turn) {
            their_costs.insert(worker, self.theirs.cost(request, worker));
        }
        their_costs.insert(chosen, self.theirs.book(request, chosen));
        self.ours.book(request, chosen);
        let id = request.selection_id.as_deref().unwrap_or_default();
        self.decisions.compare(id, [chosen, theirs], &our_costs, &their_costs);
    }
}
