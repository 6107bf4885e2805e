//! The queue in front of the pick: whether a request may be decided now, and who is next (spec scheduling 3.4 to 3.9).
//!
//! | file | owns |
//! |---|---|
//! | `profile` | policy classes as data, and the class of a request |
//! | `placement` | where a request may go, and whether somebody there is free |
//! | `order` | order inside a class |
//! | `lanes` | the waiting requests of a class; blocked ones are set aside |
//! | `round_robin` | order between classes |
//! | `limits` | how much may wait |
//! | `admission` | the queue of a partition, of all of these |
//! | `signal` | how a waiting request learns its turn |
//! | `counters`, `report` | what is shown of it |
//!
//! The queue lies in the partition's state, beside the load tracker that tells it which ranks are busy. Whatever changes
//! a load or a worker does so through the partition's lock, and whoever lets go of that lock lets the next request go,
//! so nothing has to remember to wake the queue (`partition::turn`).

mod admission;
pub mod counters;
mod lanes;
pub mod limits;
mod order;
mod placement;
pub mod profile;
pub mod report;
mod round_robin;
mod signal;

#[cfg(test)]
mod tests;

pub use self::{
    admission::AdmissionQueue, counters::Departure, lanes::MAX_CONSTRAINT_LANES, limits::QueueLimits,
    order::QueuePolicy,
};
pub(in crate::selection) use self::{
    admission::{Arrival, Arriving, Ticket},
    placement::Placement,
    signal::Word,
};
