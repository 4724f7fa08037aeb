//! Whether hosts are ready for a job, before it begins.

use std::path::Path;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use super::restarts::{NO_CONNECTION, NO_PROGRAM};
use crate::error::Error;
use crate::job::Job;
use crate::submission::process::output;
use crate::systems::{Lacking, Ssh};

/// Seconds by which clocks may differ; launchers say the same when they meet.
const CLOCKS_DIFFER: i64 = 5;

/// What a host answered.
struct Answer {
    /// Bounds of the seconds by which its clock is ahead of this machine's, which both follow from when it was asked and when it answered.
    ahead: Option<(i64, i64)>,
    /// Why it cannot run the job.
    missing: Option<String>,
}

/// What hosts lack for a job: each is asked whether it is there and has the folder and the program, and for its time. Those that an elastic job can begin without are
/// not missing.
pub fn missing_on_hosts(ssh: &Ssh, job: &Job) -> Lacking {
    let answers: Vec<Answer> = thread::scope(|scope| {
        let asked: Vec<_> =
            (0..ssh.hosts.len()).map(|node| scope.spawn(move || ask(ssh, job, node))).collect();
        asked.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let mut lacking = Lacking::default();
    let missing: Vec<String> = answers.iter().filter_map(|answer| answer.missing.clone()).collect();
    let spare = job.least_nodes.map_or(0, |least| job.nodes - least);
    // Another host takes the first one's place only after an attempt, and not with an address of its own.
    let needs_first = ssh.address.is_some() || job.max_restarts == 0;
    let lacks_first = needs_first && answers.first().is_some_and(|first| first.missing.is_some());
    match missing.len() <= spare && !lacks_first {
        true => lacking.notes.extend(missing),
        false => lacking.missing.extend(missing),
    }
    let clocks = ssh.hosts.iter().zip(&answers).filter_map(|(host, answer)| Some((host, answer.ahead?)));
    lacking.notes.extend(differ(clocks));
    lacking
}

fn ask(ssh: &Ssh, job: &Job, node: usize) -> Answer {
    let (host, program) = (&ssh.hosts[node], &job.program);
    let begin = now();
    let answer = output(&ssh.question(job, node), Path::new("."));
    let missing = match &answer {
        Ok(_) => None,
        Err(Error::Failed { status, stderr, .. }) => Some(match status.code().map(u8::try_from) {
            Some(Ok(code)) if NO_PROGRAM.contains(&code) => {
                format!("{program} on {host}, where it is not found; --program gives its path")
            }
            Some(Ok(NO_CONNECTION)) => format!("a connection to {host}: {}", stderr.trim()),
            _ => format!("{host}, where the job cannot start: {status}: {}", stderr.trim()),
        }),
        Err(error) => Some(format!("a connection to {host}: {error}")),
    };
    let time = answer.ok().and_then(|text| text.lines().next()?.trim().parse::<i64>().ok());
    Answer { ahead: time.map(|time| (time - now() - 1, time + 1 - begin)), missing }
}

/// The seconds since 1970, by this machine's clock.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or_default()
}

/// The two clocks that differ most, if that is too much, whatever the truth within their bounds is.
fn differ<'a>(clocks: impl Iterator<Item = (&'a String, (i64, i64))> + Clone) -> Option<String> {
    let (ahead, (least, _)) = clocks.clone().max_by_key(|(_, (least, _))| *least)?;
    let (behind, (_, most)) = clocks.min_by_key(|(_, (_, most))| *most)?;
    let seconds = least - most;
    (seconds > CLOCKS_DIFFER).then(|| {
        format!("the clock of {ahead} is {seconds} s ahead of that of {behind}: synchronise both, for example with chrony")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_differ_if_they_do_so_whatever_the_truth_is() {
        let said = |bounds: &[(i64, i64)]| {
            let hosts = ["one", "two", "three"].map(str::to_owned);
            differ(hosts.iter().zip(bounds.iter().copied()))
        };
        assert_eq!(said(&[]), None);
        assert_eq!(said(&[(-30, 21), (0, 40), (25, 31)]), None, "slow connections");
        let found = said(&[(-1, 1), (60, 62), (-9, -7)]).unwrap();
        assert!(found.starts_with("the clock of two is 67 s ahead of that of three"), "{found}");
    }
}
