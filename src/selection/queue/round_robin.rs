//! Order between classes: deficit round robin (spec scheduling 3.7).
//!
//! A class may send its head when its deficit covers the head's cost, in uncached tokens; a round adds the class's
//! quantum. Classes with no head that can go earn nothing, and empty ones forget what they had.

/// What a class has of the round robin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Tokens a round, at least 1.
    pub(super) quantum: u64,
    /// Tokens it may send.
    pub(super) deficit: u64,
}

/// A class as one decision sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing waits.
    Empty,
    /// What waits cannot go.
    Blocked,
    /// Cost of the head that can go.
    Ready(u64),
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RoundRobin {
    /// Class to start with.
    cursor: usize,
    /// Class that went last and has something left.
    carry: Option<usize>,
}

impl RoundRobin {
    /// The class whose head goes next; `None` when no head can go.
    pub(super) fn choose(&self, shares: &mut [Share], standings: &[Standing]) -> Option<usize> {
        let covers = |shares: &[Share], class: usize| matches!(standings[class], Standing::Ready(cost) if cost <= shares[class].deficit);
        if let Some(class) = self.carry.filter(|&class| covers(shares, class)) {
            return Some(class);
        }
        for class in self.turns(shares.len()) {
            match standings[class] {
                Standing::Empty => shares[class].deficit = 0,
                Standing::Blocked => {}
                Standing::Ready(_) => {
                    if !covers(shares, class) {
                        shares[class].earn(1);
                    }
                    if covers(shares, class) {
                        return Some(class);
                    }
                }
            }
        }
        let missing = shares.iter().zip(standings).filter_map(|(share, standing)| match standing {
            Standing::Ready(cost) => Some(cost.saturating_sub(share.deficit).div_ceil(share.quantum.max(1))),
            Standing::Empty | Standing::Blocked => None,
        });
        let rounds = missing.min()?;
        for (share, standing) in shares.iter_mut().zip(standings) {
            if matches!(standing, Standing::Ready(_)) {
                share.earn(rounds);
            }
        }
        self.turns(shares.len()).find(|&class| covers(shares, class))
    }

    /// The head of `class` went.
    pub(super) fn took(&mut self, shares: &mut [Share], class: usize, cost: u64, is_empty: bool) {
        self.cursor = (class + 1) % shares.len();
        let deficit = &mut shares[class].deficit;
        *deficit = if is_empty { 0 } else { deficit.saturating_sub(cost) };
        self.carry = (*deficit > 0).then_some(class);
    }

    fn turns(&self, classes: usize) -> impl Iterator<Item = usize> + use<> {
        let cursor = self.cursor;
        (0..classes).map(move |step| (cursor + step) % classes)
    }
}

impl Share {
    fn earn(&mut self, rounds: u64) {
        self.deficit = self.deficit.saturating_add(rounds.saturating_mul(self.quantum.max(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends everything; `costs` are the waiting requests of each class.
    fn order(quanta: &[u64], costs: &[Vec<u64>]) -> Vec<(usize, usize)> {
        let mut shares: Vec<_> = quanta.iter().map(|&quantum| Share { quantum, deficit: 0 }).collect();
        let (mut turn, mut sent, mut order) = (RoundRobin::default(), vec![0; costs.len()], Vec::new());
        loop {
            let standing =
                |(costs, &sent): (&Vec<u64>, &usize)| costs.get(sent).map_or(Standing::Empty, |&c| Standing::Ready(c));
            let standings: Vec<_> = costs.iter().zip(&sent).map(standing).collect();
            let Some(class) = turn.choose(&mut shares, &standings) else { return order };
            let cost = costs[class][sent[class]];
            order.push((class, sent[class]));
            sent[class] += 1;
            turn.took(&mut shares, class, cost, sent[class] == costs[class].len());
        }
    }

    #[test]
    fn quanta_of_two_to_one_serve_two_to_one() {
        // The recorded case queue_07: two empty classes, gold and bronze.
        let order = order(&[64, 64, 64, 32], &[vec![], vec![], vec![64; 4], vec![64; 4]]);
        let named: Vec<_> = order.iter().map(|&(class, at)| format!("{}{at}", ["", "", "g", "b"][class])).collect();
        assert_eq!(named, ["g0", "g1", "b0", "g2", "g3", "b1", "b2", "b3"]);
    }

    #[test]
    fn what_is_left_is_spent_before_the_next_class() {
        // Two of cost 10 for one quantum of 20.
        let order = order(&[20, 20], &[vec![10; 4], vec![10; 4]]);
        assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]);
    }

    #[test]
    fn a_head_of_many_rounds_takes_one_decision() {
        let mut shares = [Share { quantum: 1, deficit: 0 }, Share { quantum: 3, deficit: 0 }];
        let turn = RoundRobin::default();
        let standings = [Standing::Ready(u64::MAX), Standing::Ready(1_000_000)];
        assert_eq!(turn.choose(&mut shares, &standings), Some(1));
        assert_eq!(shares[1].deficit, 1_000_002);
        assert_eq!(shares[0].deficit, 333_334);
    }

    #[test]
    fn blocked_classes_earn_nothing_and_empty_ones_forget() {
        let mut shares =
            [Share { quantum: 5, deficit: 4 }, Share { quantum: 5, deficit: 4 }, Share { quantum: 5, deficit: 0 }];
        let turn = RoundRobin::default();
        let chosen = turn.choose(&mut shares, &[Standing::Blocked, Standing::Empty, Standing::Ready(7)]);
        assert_eq!((chosen, shares.map(|share| share.deficit)), (Some(2), [4, 0, 10]));
        assert_eq!(turn.choose(&mut shares, &[Standing::Blocked, Standing::Empty, Standing::Blocked]), None);
    }
}
