//! Time as the core sees it: a monotonic point handed in by the host, never read here.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

/// A monotonic point in time, in nanoseconds since an origin of the host's choice. Arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// This point plus `duration`, saturating at the end of time.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// This point minus `duration`, saturating at the origin.
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Time from `earlier` to this point; zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Where the core gets its time from. A simulator supplies a virtual one.
pub trait Clock: Send + Sync + 'static {
    /// The current monotonic point.
    fn now(&self) -> Moment;

    /// Wall-clock nanoseconds since the Unix epoch, for versions that replicas compare.
    fn unix_nanos(&self) -> u64;

    /// The instant at which this clock's origin is put, for plugins that reckon in instants. Any one will do for a
    /// virtual clock: they see differences.
    fn origin(&self) -> Instant {
        static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
        *ORIGIN
    }

    /// A point of this clock as an instant.
    fn instant(&self, at: Moment) -> Instant {
        let origin = self.origin();
        origin.checked_add(Duration::from_nanos(at.0)).unwrap_or(origin)
    }

    /// An instant as a point of this clock; the origin for earlier ones.
    fn moment(&self, at: Instant) -> Moment {
        Moment::default().after(at.saturating_duration_since(self.origin()))
    }
}

/// The machine's own clocks.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn unix_nanos(&self) -> u64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }

    fn origin(&self) -> Instant {
        self.0
    }
}
