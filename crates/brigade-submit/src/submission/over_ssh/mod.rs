//! A job on hosts that are reached by ssh.

mod host;
mod readiness;
mod restarts;

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use brigade_launch::{AuthToken, exit};

use super::{Answer, Console};
use crate::error::Result;
use crate::job::Job;
use crate::systems::Ssh;
use host::{Host, ended};
pub use readiness::missing_on_hosts;
use restarts::{Attempt, Attempts, NO_CONNECTION, NO_PROGRAM};

const POLL: Duration = Duration::from_millis(50);

/// How long the other hosts may take to notice the failure of one.
const NOTICE: Duration = Duration::from_secs(30);

/// Runs a job, which was checked, on all hosts until it ends, and returns its exit code. It starts again after a preemption, after a host that had been
/// reached was lost, and after a failure as often as the job says. An elastic job that has lost node 0 starts again with another host as node 0.
///
/// # Errors
/// If `ssh` cannot be started.
pub fn over_ssh(ssh: &Ssh, job: &Job, console: &mut Console<'_>) -> Result<u8> {
    let mut attempts = Attempts::new(job.max_restarts, job.least_nodes.is_some());
    let mut ssh = ssh.clone();
    loop {
        let (attempt, codes, cancelled) = once(&ssh, job, console)?;
        let next = attempts.next(attempt, Instant::now());
        let Some((length, why)) = next.filter(|_| !cancelled) else { return Ok(attempt.code) };
        (console.say)(&why);
        if job.least_nodes.is_some() {
            ssh.begin_elsewhere(&codes, &is_gone).iter().for_each(|said| (console.say)(said));
        }
        if !pause(length, console) {
            return Ok(attempt.code);
        }
    }
}

/// Waits, and says whether the job shall start again.
fn pause(length: Duration, console: &mut Console<'_>) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < length {
        if console.interrupted.swap(false, Ordering::SeqCst) && matches!((console.ask)(), Answer::Cancel) {
            return false;
        }
        thread::sleep(POLL);
    }
    true
}

/// Whether a host that ended so cannot be reached, or has no program.
fn is_gone(code: u8) -> bool {
    code == NO_CONNECTION || NO_PROGRAM.contains(&code)
}

/// How the job ended, with the codes of its hosts, and whether the user ended it.
fn once(ssh: &Ssh, job: &Job, console: &mut Console<'_>) -> Result<(Attempt, Vec<u8>, bool)> {
    let begin = Instant::now();
    // A new one each time; nobody else needs it.
    let token = AuthToken::random().map_err(brigade_launch::Error::Random)?;
    let hosts = (0..job.nodes).map(|node| Host::start(ssh, job, node, &token));
    let mut hosts = hosts.collect::<Result<Vec<_>>>()?;
    let (mut cancelled, mut failed, mut too_few) = (false, None, None);
    let patience = Duration::from_secs(job.end_seconds()) + NOTICE;
    while !hosts.iter().all(Host::is_over) {
        if console.interrupted.swap(false, Ordering::SeqCst) {
            match (console.ask)() {
                Answer::Follow => {}
                Answer::Leave => (console.say)("it ends when this command ends: follow it, or cancel it"),
                Answer::Cancel => {
                    cancelled = true;
                    hosts.iter_mut().for_each(Host::end);
                }
            }
        }
        for (node, name) in ssh.hosts.iter().enumerate() {
            // An elastic job goes on without any node but the first.
            let is_spare = job.least_nodes.is_some() && node > 0;
            let (goes_on, host) = (!hosts[0].is_over(), &mut hosts[node]);
            if let Some(error) = host.start_again(ssh, job, node, &token) {
                (console.say)(&error);
            }
            // Those that are told to end need not be named.
            let is_told = host.is_told();
            let Some(code) = host.ended(patience).filter(|code| !is_told && *code != exit::DONE) else {
                continue;
            };
            if is_spare {
                if goes_on {
                    (console.say)(&host.retry(name, code, job.max_restarts));
                }
                continue;
            }
            // One that saves tells the others itself.
            if code != exit::PREEMPTED {
                (console.say)(&ended(name, code));
                failed.get_or_insert_with(Instant::now);
            }
        }
        // Without one of its nodes the world cannot begin or continue. Where a launcher failed, the others notice, unless they still wait for it.
        let given_up = hosts.iter().skip(1).filter(|host| host.is_given_up());
        let has_ended = match job.least_nodes {
            Some(least) => {
                let gone = given_up.filter(|host| host.code != Some(exit::DONE));
                let codes: Vec<u8> = gone.filter_map(|host| host.code).collect();
                if codes.len() > job.nodes - least && !hosts[0].is_over() {
                    too_few = codes.last().copied();
                }
                too_few.is_some() || hosts[0].code.is_some_and(is_gone)
            }
            None => hosts.iter().filter_map(|host| host.code).any(is_gone),
        };
        if has_ended || failed.is_some_and(|since: Instant| since.elapsed() > NOTICE) {
            hosts.iter_mut().for_each(Host::end);
        }
        // What comes back is for a run that goes on.
        if job.least_nodes.is_some() && hosts[0].is_over() {
            hosts.iter_mut().for_each(Host::forget);
            failed.get_or_insert_with(Instant::now);
        }
        thread::sleep(POLL);
    }
    let codes: Vec<(u8, bool)> = hosts.iter().filter_map(|host| Some((host.code?, host.is_cut))).collect();
    let code = match job.least_nodes {
        // The first node speaks for an elastic job, whatever became of others, unless they were too few.
        Some(_) => too_few.filter(|_| !cancelled).unwrap_or(codes[0].0),
        None => worst(&codes),
    };
    let lost = hosts.iter().filter(|host| host.code == Some(NO_CONNECTION) && !host.is_cut);
    let connected = lost.map(|host| host.lasted).max().unwrap_or_default();
    let attempt = Attempt { code, lasted: begin.elapsed(), connected };
    Ok((attempt, codes.into_iter().map(|(code, _)| code).collect(), cancelled))
}

/// The code of a job, by those of its hosts and whether their connections were cut: a connection that was lost goes first, as the others may have failed
/// from that.
fn worst(codes: &[(u8, bool)]) -> u8 {
    let is_failure = |code: u8| code != exit::DONE && code != exit::PREEMPTED;
    let first = |wanted: &dyn Fn(u8, bool) -> bool| {
        codes.iter().find(|(code, is_cut)| wanted(*code, *is_cut)).map(|(code, _)| *code)
    };
    first(&|code, is_cut| code == NO_CONNECTION && !is_cut)
        .or_else(|| first(&|code, is_cut| is_failure(code) && !is_cut))
        .or_else(|| first(&|code, _| is_failure(code)))
        .or_else(|| first(&|code, _| code != exit::DONE))
        .unwrap_or(exit::DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_was_lost_speaks_for_the_job() {
        for (codes, code) in [
            ([(0, false), (0, false)], 0),
            ([(0, false), (75, false)], 75),
            ([(75, false), (127, false)], 127),
            ([(1, false), (NO_CONNECTION, false)], NO_CONNECTION),
            ([(NO_CONNECTION, true), (1, false)], 1),
            ([(NO_CONNECTION, true), (75, false)], NO_CONNECTION),
        ] {
            assert_eq!(worst(&codes), code, "{codes:?}");
        }
    }
}
