//! Separately launched servers and workers of `async-server`, which die and come back.

use rustix::process::Signal;

use crate::place::{Done, Place, Running};
use crate::processes::{TOKEN, none_left_in, port, ranks, send};
use crate::runs::newest;

/// Enough that a worker can die, start again and join while the others go on.
const STEPS: u64 = 2000;
const INNER_STEPS: u64 = 20;

/// Servers and workers with the same settings.
struct Launches<'a> {
    place: &'a Place,
    line: String,
    servers: usize,
    workers: usize,
    steps: u64,
    endpoint: String,
}

impl<'a> Launches<'a> {
    fn new(place: &'a Place, servers: usize, workers: usize, steps: u64, extra: &str) -> Self {
        let port = port();
        let line = format!(
            "--strategy async-server --staleness 2 --steps {steps} --inner-steps {INNER_STEPS} --set train.validate_every=0 \
             --set train.micro_batch_size=1 --global-batch-size 12 --servers {servers} --workers {workers} {extra}"
        );
        Self { place, line, servers, workers, steps, endpoint: format!("127.0.0.1:{port}") }
    }

    fn servers(&self, extra: &str) -> Running {
        let Self { line, servers, endpoint, .. } = self;
        self.start(&format!(
            "{line} --nproc-per-node {servers} --listen {endpoint} --checkpoint-every {INNER_STEPS} --keep 2 --out s {extra}"
        ))
    }

    fn worker(&self, number: usize, extra: &str) -> Running {
        let Self { line, endpoint, .. } = self;
        self.start(&format!(
            "{line} --nproc-per-node 1 --worker {number} --coordinator {endpoint} --out w{number} {extra}"
        ))
    }

    fn start(&self, line: &str) -> Running {
        self.place.start(self.place.train(line).env("BRIGADE_TOKEN", TOKEN))
    }

    /// Waits until there is a checkpoint of this step or a later one.
    fn reach(&self, servers: &mut Running, step: u64) {
        let reached = |_: &mut Running| newest(self.place, "s").filter(|newest| *newest >= step);
        servers.until(&format!("step {step}"), reached);
    }

    /// Checks that every share of every step counted exactly once; gives how often a worker was lost.
    fn check(&self) -> u64 {
        let records = self.place.metrics("s");
        let steps: Vec<u64> = records.iter().map(|record| record["step"].as_u64().unwrap()).collect();
        assert_eq!(
            steps,
            (1..=self.steps / INNER_STEPS).map(|round| round * INNER_STEPS).collect::<Vec<_>>()
        );
        for record in &records {
            // The last sample of the text is short; a share has 64 targets or more.
            let (targets, all) =
                (record["metrics"]["valid_targets"].as_f64().unwrap() as u64, INNER_STEPS * 12 * 16);
            assert!((all - 32..=all).contains(&targets), "{record}");
            // Each share begins with all parameters, in fp32.
            let pulled = 4 * 10_960 * INNER_STEPS * self.workers as u64;
            assert!(record["comm_bytes"].as_u64().unwrap() > pulled, "{record}");
            // One step more than the bound, and what the other workers had under way.
            assert!(record["round"]["staleness_max"].as_f64().unwrap() < 4.0, "{record}");
        }
        let mean = |records: &[serde_json::Value]| {
            records.iter().map(|record| record["loss"].as_f64().unwrap()).sum::<f64>() / records.len() as f64
        };
        assert!(mean(&records[records.len() - 5..]) < 0.5 * mean(&records[..2]), "it learns");
        assert!(
            self.place.path("s/model.safetensors").exists()
                && !self.place.path("w0/model.safetensors").exists()
        );
        records.iter().map(|record| record["round"]["lost_workers"].as_u64().unwrap()).sum()
    }
}

fn well(running: Running) -> Done {
    let done = running.wait();
    assert_eq!(done.code, Some(0), "{}", done.err);
    done
}

/// The only rank of a launch, once it is there.
fn rank(launch: &mut Running) -> u32 {
    launch.until("its rank is there", |launch| ranks(launch.pid()).first().copied())
}

fn says(running: &mut Running, what: &str) {
    running.until(what, |running| running.complained().contains(what).then_some(()));
}

#[test]
fn a_second_worker_with_the_same_number_is_refused_and_disturbs_nobody() {
    let place = Place::new();
    let launches = Launches::new(&place, 1, 2, STEPS / 2, "--set comm.host_timeout_seconds=2");
    let mut servers = launches.servers("");
    let first = launches.worker(0, "");
    says(&mut servers, "worker 0 joined");
    let Launches { line, endpoint, .. } = &launches;
    let second =
        launches.start(&format!("{line} --nproc-per-node 1 --worker 0 --coordinator {endpoint} --out other"));
    let done = second.wait();
    assert_ne!(done.code, Some(0));
    let said = "already have a worker 0; give each its own strategy.worker (--worker)";
    assert!(done.err.contains(said), "{}", done.err);
    well(first);
    assert!(!well(servers).err.contains("is gone"), "the first one was disturbed");
}

#[test]
fn a_worker_that_dies_is_dropped_and_one_that_comes_late_or_again_joins() {
    let place = Place::new();
    let launches = Launches::new(&place, 1, 3, STEPS, "");
    let mut servers = launches.servers("");
    let [mut first, mut second] = [launches.worker(0, ""), launches.worker(1, "--max-restarts 3")];
    launches.reach(&mut servers, 100);
    // The launcher starts it again.
    assert!(send(rank(&mut second), Signal::KILL));
    says(&mut servers, "worker 1 is gone");
    launches.reach(&mut servers, newest(&place, "s").unwrap() + 100);
    // Nobody does.
    assert!(send(rank(&mut first), Signal::KILL));
    assert_ne!(first.wait().code, Some(0));
    says(&mut servers, "worker 0 is gone");
    let third = launches.worker(2, "");
    says(&mut servers, "worker 2 joined");
    launches.reach(&mut servers, newest(&place, "s").unwrap() + 100);
    let again = launches.worker(0, "--overwrite");
    let done = well(servers);
    for worker in [second, third, again] {
        let done = well(worker);
        assert!(done.err.contains("run finished"), "{}", done.err);
    }
    assert_eq!(launches.check(), 2, "{}", done.err);
    none_left_in(&place.path(""));
}

#[test]
fn a_worker_that_hangs_is_dropped_at_the_deadline_and_joins_again() {
    let place = Place::new();
    let launches = Launches::new(&place, 1, 2, STEPS, "");
    let deadline = "--set comm.train_timeout_seconds=2";
    let mut servers = launches.servers(deadline);
    let [first, mut second] = [launches.worker(0, ""), launches.worker(1, deadline)];
    launches.reach(&mut servers, 100);
    let (launcher, stopped) = (second.pid(), rank(&mut second));
    assert!(send(launcher, Signal::STOP) && send(stopped, Signal::STOP));
    says(&mut servers, "worker 1 is gone");
    launches.reach(&mut servers, newest(&place, "s").unwrap() + 40);
    assert!(send(stopped, Signal::CONT) && send(launcher, Signal::CONT));
    for running in [servers, first, second] {
        well(running);
    }
    assert_eq!(launches.check(), 1);
}

/// Without a worker a round does not end, so servers do not wait for its end.
#[test]
fn a_cluster_that_is_preempted_ends_at_once_and_continues() {
    let place = Place::new();
    let launches = Launches::new(&place, 2, 1, STEPS, "");
    let [mut serving, worker] = [launches.servers(""), launches.worker(0, "")];
    launches.reach(&mut serving, 100);
    assert!(send(worker.pid(), Signal::TERM));
    says(&mut serving, "worker 0 is gone");
    let done = worker.wait();
    assert_eq!(done.code, Some(75), "{}", done.err);
    assert!(done.err.contains("preempted; this worker's share goes to another one"), "{}", done.err);
    assert!(send(serving.pid(), Signal::TERM));
    let done = serving.wait();
    assert_eq!(done.code, Some(75), "{}", done.err);
    let said = "preempted within a round, with no worker connected; --resume auto continues from step";
    assert!(done.err.contains(said), "{}", done.err);
    let saved = newest(&place, "s").unwrap();
    let [mut serving, worker] = [launches.servers("--resume auto"), launches.worker(0, "--overwrite")];
    launches.reach(&mut serving, saved + 100);
    drop((worker, serving));
    none_left_in(&place.path(""));
}

#[test]
fn servers_that_die_go_on_from_their_checkpoint_and_workers_wait_for_them() {
    for servers in [1, 2] {
        let place = Place::new();
        let launches = Launches::new(&place, servers, 2, STEPS / 2, "");
        let mut serving = launches.servers("--max-restarts 3");
        let mut workers = [launches.worker(0, ""), launches.worker(1, "")];
        launches.reach(&mut serving, 100);
        // Their launcher starts them again.
        let last = serving.until("servers are there", |serving| ranks(serving.pid()).last().copied());
        assert!(send(last, Signal::KILL));
        workers.iter_mut().for_each(|worker| says(worker, "lost connection to the servers, reconnecting"));
        launches.reach(&mut serving, newest(&place, "s").unwrap() + 100);
        // Nobody does, for a while; with their launcher they all die.
        drop(serving);
        let lost = |worker: &mut Running| {
            worker.until("lost again", |worker| {
                (worker.complained().matches("lost connection to the servers").count() > 1).then_some(())
            });
        };
        workers.iter_mut().for_each(lost);
        let serving = launches.servers("--resume auto");
        well(serving);
        for worker in workers {
            let done = well(worker);
            assert!(done.err.contains("reconnected 2 times"), "{}", done.err);
        }
        launches.check();
    }
}

#[test]
fn what_does_not_fit_is_one_message() {
    let place = Place::new();
    let launches = Launches::new(&place, 1, 2, STEPS, "");
    let refused = |line: &str, says: &str| {
        let done = place.run(&mut place.train(line));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(done.err.contains(says), "{line}: {}", done.err);
    };
    let server = "--strategy async-server --staleness 1 --inner-steps 5 --set train.validate_every=0";
    let at = "127.0.0.1:29600";
    refused(&format!("--listen {at}"), "only --strategy async-server has servers");
    refused(&format!("{server} --listen {at}"), "must say how many workers");
    refused(&format!("{server} --workers 2 --listen 29600"), "it must be host:port");
    refused(&format!("{server} --workers 2 --listen {at} --coordinator {at}"), "set only one of the two");
    refused(&format!("{server} --workers 2 --listen {at} --nproc-per-node 2"), "it must be 2");
    refused(&format!("{server} --workers 2 --coordinator {at} --nproc-per-node 2"), "it must be 1");
    refused(&format!("{server} --workers 2 --worker 2 --coordinator {at}"), "it must be below");
    let synchronous = "--strategy async-server --workers 2";
    refused(&format!("{synchronous} --listen {at}"), "they cannot come and go");
    // What only the servers can know.
    let mut servers = launches.servers("--set comm.init_timeout_seconds=8");
    says(&mut servers, "2 workers and 1 server");
    let other = launches.worker(0, "--set train.seed=7").wait();
    assert_eq!(other.code, Some(1));
    assert!(other.err.contains("`seed = 7` here"), "{}", other.err);
    let alone = servers.wait();
    assert_eq!(alone.code, Some(1));
    assert!(alone.err.contains("no worker has been connected for 8 s"), "{}", alone.err);
    let nobody = launches.worker(0, "--overwrite --set comm.init_timeout_seconds=1").wait();
    assert!(nobody.err.contains("have not been reached for 1 s"), "{}", nobody.err);
}
