//! Ranks that are processes of their own, each with Burn's generator to itself, as those of a real run: they have what ranks have that are threads. Each process is
//! this test's own binary, started with a role in its environment.

use std::net::TcpListener;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use brigade::comm::{AuthToken, Join, join};
use brigade::core::{DP, Dtype, Groups, Mesh, PP, Recompute};
use burn::tensor::Device;

use super::batch_norm::{batch as pictures, synchronised_images};
use super::case::{Case, Outcome, of};
use super::dropout::{gpt, texts};
use crate::backend::{Backend, backends, timeouts};

/// The backend's name, what is trained, the rank, the endpoint, and the file for what rank 0 has.
const ROLE: &str = "BRIGADE_TEST_ROLE";
const RANKS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(300);

/// A process that is killed when the test ends, however it ends.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A GPT with dropout, or images with batch norm over the ranks; sharded and recomputed.
fn train(what: &str, device: &Device, groups: Groups) -> Outcome {
    let settings = &of(3, Recompute::Every(1));
    match what {
        "dropout" => {
            let case = Case { model: |device: &Device| gpt(device, 0.5), batch: texts, seed: 11 };
            case.train(device, groups, settings, 0..3, None)
        }
        _ => {
            let case = Case { model: synchronised_images, batch: pictures, seed: 11 };
            case.train(device, groups, settings, 0..3, None)
        }
    }
}

/// The losses and norms of all steps, and what was learned, as bytes.
fn bytes(outcome: &Outcome) -> Vec<u8> {
    let learned = outcome.learned.iter().flat_map(|tensor| tensor.data.try_to_vec::<f32>().unwrap());
    outcome.figures.iter().copied().chain(learned.map(f64::from)).flat_map(f64::to_le_bytes).collect()
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|number| f64::from_le_bytes(number.try_into().unwrap())).collect()
}

/// The body of each process.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [name, what, rank, endpoint, file] = role.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let rank: usize = rank.parse().unwrap();
    let backend = backends().into_iter().find(|backend| backend.name == name).unwrap();
    let options = Join::new(rank, RANKS, endpoint, AuthToken::new("children"));
    let world = join(Join { timeouts: timeouts(), ..options }).unwrap();
    let (device, groups) = (backend.open)(world.group(), Mesh::new(RANKS, [(PP, 1), (DP, RANKS)]).unwrap());
    let outcome = train(what, &device, groups);
    if rank == 0 {
        std::fs::write(file, bytes(&outcome)).unwrap();
    }
    world.shutdown().unwrap();
}

/// What rank 0 of a world of processes has.
fn on_processes(backend: &Backend, what: &str) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    // This port was free a moment ago. If another program takes it meanwhile, the test fails and says so.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let role = format!("{} {what} {rank} 127.0.0.1:{port} {}", backend.name, file.path().display());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "meshes::processes::child", "--nocapture"]).env(ROLE, role);
        Rank(command.spawn().unwrap())
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(start).collect();
    let deadline = Instant::now() + PATIENCE;
    for (number, Rank(child)) in ranks.iter_mut().enumerate() {
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "rank {number} still runs after {PATIENCE:?}");
            thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "rank {number}: {status}");
    }
    std::fs::read(file.path()).unwrap()
}

fn processes_are_as_threads(what: &str) {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    for backend in backends() {
        let on_threads =
            || backend.on_threads(1, RANKS, |device, groups| bytes(&train(what, &device, groups)));
        if backend.times_kernels {
            on_threads();
        }
        let (threads, processes) = (on_threads().remove(0), on_processes(&backend, what));
        if backend.has_exact_sums {
            assert!(threads == processes, "other bits on {}", backend.name);
            continue;
        }
        let (threads, processes) = (numbers(&threads), numbers(&processes));
        assert_eq!(threads.len(), processes.len());
        let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
        let apart = norm(&mut threads.iter().zip(&processes).map(|(a, b)| a - b));
        let most = backend.tolerance(Dtype::F32).relative * norm(&mut threads.iter().copied());
        assert!(apart <= most, "{}: {apart:e} apart, of {most:e}", backend.name);
    }
}

#[test]
fn processes_drop_what_threads_drop() {
    processes_are_as_threads("dropout");
}

#[test]
fn batch_norm_over_processes_is_that_over_threads() {
    processes_are_as_threads("norms");
}
