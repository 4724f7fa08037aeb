//! Whose a location for checkpoints is, where no lock of the operating system says so: in object stores, and on file systems without locks.
//!
//! ```text
//! <location>/lease/00000007.json     who holds the location; written again every few seconds, and once more at the end
//! ```
//!
//! - **Whoever creates the next number holds the location.** Stores create an object only if there is none (`If-None-Match: *`), so of several that
//!   try, one succeeds. The highest number counts, and is never removed.
//! - **The next number may be created when the one before has ended, or is silent**: when it was not written again for the time that it names.
//!   Both the last writing and the present are times of the store (`Last-Modified`), which is asked for the present by writing a file;
//!   waiting is measured by the clock that cannot be set. No two clocks are compared.
//! - **A holder that finds a higher number, or another's record under its own, has lost the location**, whatever the reason, and must write nothing more.

mod hold;
mod location;
#[cfg(feature = "object-store")]
mod object;

use std::fmt;
use std::time::{Duration, Instant, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use serde::{Deserialize, Serialize};

pub use hold::Lease;
pub use location::{LeaseLocation, lease_location};
use location::{now, number_of, random_name};

use crate::error::{Error, Result};

/// A lease is renewed this many times within the time after which it is over.
const RENEWALS: u32 = 6;

/// A waiting process looks this many times within that time.
const LOOKS: u32 = 60;

/// What stores leave out of a time.
const GRANULARITY: Duration = Duration::from_secs(1);

/// What is never created, because something is there.
const UNCONDITIONAL: &[u8] = b"never created";

/// The end of the year 9999: later times cannot be written.
const LAST_SECOND: u64 = 253_402_300_799;

/// Who holds a location.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The host's name.
    pub host: String,
    /// The launcher's process.
    pub pid: u32,
    /// The run's folder on that host.
    pub folder: String,
    /// When it began, in seconds since 1970, by its host's clock.
    pub since: u64,
    /// Names the lock of the operating system that it holds as well, on any host; empty if there is none. Whoever has that lock knows that a
    /// holder before it is no more.
    #[serde(default)]
    pub lock: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, folder, since, .. } = self;
        let since = UNIX_EPOCH + Duration::from_secs((*since).min(LAST_SECOND));
        let since = format_rfc3339_seconds(since).to_string().replace('T', " ").replace('Z', " UTC");
        write!(f, "process {pid} on host {host} (folder {folder}) since {since}")
    }
}

/// A lease as it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Who holds it, or held it.
    pub holder: Holder,
    /// When it is not written again for this many seconds, it is over.
    pub seconds: f64,
    /// Tells it from all others.
    #[serde(default)]
    pub id: String,
    /// How often it was renewed.
    pub renewed: u64,
    /// How the run ended, once it has.
    #[serde(default)]
    pub ended: Option<String>,
    /// What the holder says of itself.
    #[serde(default)]
    pub status: serde_json::Value,
}

impl LeaseRecord {
    fn duration(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds).unwrap_or(Duration::from_secs(60))
    }
}

/// The newest lease of a location.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseFound {
    /// What it says.
    pub record: LeaseRecord,
    /// How long ago it was written, by the store's clock.
    pub silent: Duration,
}

impl LeaseFound {
    /// Whether its holder gives signs of life, or has lately.
    pub fn is_held(&self) -> bool {
        self.record.ended.is_none() && self.silent <= self.record.duration() + GRANULARITY
    }
}

/// The newest lease of a location; `None` if there is none that can be read.
///
/// # Errors
/// Those of the location.
pub fn look_at_lease(location: &dyn LeaseLocation) -> Result<Option<LeaseFound>> {
    let Some(number) = newest_lease(location)? else { return Ok(None) };
    let Some((content, written)) = location.read(&name(number))? else { return Ok(None) };
    let Ok(record) = serde_json::from_slice(&content) else { return Ok(None) };
    Ok(Some(LeaseFound { record, silent: silence(location, written)? }))
}

/// Takes a location, as soon as nobody holds it, for as long as the result is kept; a lease is over `seconds` after the last sign of life.
/// `waits` is called with what is waited for, and `check` before the location is taken from an earlier holder, who may only be suspended: it says why that would be of no
/// use.
///
/// # Errors
/// [`Error::Held`] when another holder is alive; [`Error::NotTaken`] by `check`; those of the location.
pub fn take_lease(
    location: Box<dyn LeaseLocation>,
    holder: &Holder,
    duration: Duration,
    waits: &mut dyn FnMut(&str),
    check: &dyn Fn() -> Result<(), String>,
) -> Result<Lease> {
    let record = LeaseRecord {
        holder: holder.clone(),
        seconds: duration.as_secs_f64(),
        id: random_name()?,
        renewed: 0,
        ended: None,
        status: serde_json::Value::Null,
    };
    loop {
        let before = newest_lease(&*location)?;
        if let Some(number) = before {
            await_end(&*location, number, holder, duration, waits)?;
            check().map_err(|reason| Error::NotTaken { reason })?;
        }
        let number = before.map_or(1, |before| before + 1);
        if location.create(&name(number), &encoded(&record)?)? {
            // A location that creates it once more would have let several hold it at once.
            if location.create(&name(number), UNCONDITIONAL)? {
                location.remove(&name(number))?;
                // Another one has taken the location meanwhile, and removed this number.
                if newest_lease(&*location)? > Some(number) {
                    continue;
                }
                return Err(Error::Object {
                    operation: "hold",
                    path: location.text(),
                    message: "it replaces objects that must only be created (`If-None-Match: *` is ignored), so two runs could write there at once; use a store \
                              with conditional writes"
                        .into(),
                    may_pass: false,
                });
            }
            // Nobody looks at older ones any more.
            for older in numbers(&*location)?.into_iter().filter(|older| *older < number) {
                location.remove(&name(older))?;
            }
            return Lease::start(location, number, record, duration / RENEWALS);
        }
    }
}

/// Returns when the lease is over.
fn await_end(
    location: &dyn LeaseLocation,
    number: u64,
    me: &Holder,
    duration: Duration,
    waits: &mut dyn FnMut(&str),
) -> Result<()> {
    let Some((first, written)) = location.read(&name(number))? else { return Ok(()) };
    // What is not whole yet was begun just now.
    let record: Option<LeaseRecord> = serde_json::from_slice(&first).ok();
    if let Some(record) = &record
        && (record.ended.is_some() || (!me.lock.is_empty() && record.holder.lock == me.lock))
    {
        return Ok(());
    }
    let (begin, silent) = (Instant::now(), silence(location, written)?);
    let duration = record.as_ref().map_or(duration, LeaseRecord::duration);
    let left = (duration + GRANULARITY).saturating_sub(silent);
    let who = record.map_or_else(|| "an unknown process".into(), |record| record.holder.to_string());
    if left > Duration::ZERO {
        waits(&format!(
            "{} was held {:.0} s ago by {who}; waiting up to {:.0} s for a sign of life",
            location.text(),
            silent.as_secs_f64(),
            left.as_secs_f64()
        ));
    }
    loop {
        let content = location.read(&name(number))?.map(|(content, _)| content);
        if content.as_ref().is_some_and(|content| *content != first) {
            let record = content.and_then(|content| serde_json::from_slice::<LeaseRecord>(&content).ok());
            if record.is_some_and(|record| record.ended.is_some()) {
                return Ok(());
            }
            return Err(Error::Held { place: location.text(), holder: who });
        }
        // Another process may have taken the location meanwhile: it is waited for in the same way.
        if begin.elapsed() >= left || newest_lease(location)? != Some(number) {
            return Ok(());
        }
        std::thread::sleep((duration / LOOKS).min(left.saturating_sub(begin.elapsed())));
    }
}

/// How long ago something was written, by the store's clock.
fn silence(location: &dyn LeaseLocation, written: Duration) -> Result<Duration> {
    Ok(now(location)?.saturating_sub(written))
}

/// The number of the newest lease of a location: as long as it stays the same, nobody else has taken the location.
///
/// # Errors
/// Those of the location.
pub fn newest_lease(location: &dyn LeaseLocation) -> Result<Option<u64>> {
    Ok(numbers(location)?.into_iter().max())
}

fn numbers(location: &dyn LeaseLocation) -> Result<Vec<u64>> {
    Ok(location.names()?.iter().filter_map(|name| number_of(name)).collect())
}

fn name(number: u64) -> String {
    format!("{number:08}.json")
}

fn encoded(record: &LeaseRecord) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(record).map_err(|error| Error::Object {
        operation: "write",
        path: "a lease".into(),
        message: error.to_string(),
        may_pass: false,
    })
}
