//! Servers and workers in worlds of their own: what a worker that dies, errs or is too slow does to the others.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use brigade::comm::{Timeouts, threads};
use brigade::core::{
    AsyncServer, Collectives, DP, Groups, Mesh, Message, NamedTensor, ParameterServers, Part, Result, Rounds,
    SeparateWorlds, Share, StepReport, Strategy, WorkerLink, WorkerLinkSender, WorkerLinks,
};
use burn::tensor::{Tensor, TensorData};

use crate::mesh::{on_mesh, same_bits};
use crate::row::{RATE, Row};

/// Long enough that nothing times out.
const PATIENT: Duration = Duration::from_secs(100);

/// Requests as workers send them, with the numbers behind.
const SHARE: [u64; 4] = [0; 4];
const PARAMETERS: [u64; 4] = [1, 0, 0, 0];

/// With the learning rate and the factor of the gradients.
fn update() -> [u64; 4] {
    [2, 1f64.to_bits(), 1f64.to_bits(), 0]
}

fn strategy(servers: usize, steps: u64, is_server: bool) -> Arc<dyn Strategy> {
    Arc::new(AsyncServer(ParameterServers {
        count: servers,
        rounds: Some(Rounds { steps, staleness: 1, delay_compensation: 0.0 }),
        separate: Some(SeparateWorlds { is_server, workers: 1 }),
    }))
}

/// What the first server said of workers.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Notes {
    /// Those that say that a worker is gone.
    fn gone(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().filter(|note| note.contains("is gone")).cloned().collect()
    }
}

/// What a server has after a round.
struct Served {
    report: Result<StepReport>,
    weights: Vec<NamedTensor>,
}

/// Serves a round with all steps of a row, for the worker that `work` is.
fn serve(
    row: &Row,
    servers: usize,
    deadline: Duration,
    notes: &Notes,
    work: impl FnOnce(&[WorkerLinkSender]) + Send,
) -> Vec<Served> {
    let row = Row { dp: servers, strategy: strategy(servers, row.steps, true), ..row.clone() };
    let (sender, listening) = channel();
    thread::scope(move |scope| {
        scope.spawn(move || {
            let mut links: Vec<(usize, WorkerLinkSender)> = listening.iter().take(servers).collect();
            links.sort_by_key(|(rank, _)| *rank);
            work(&links.into_iter().map(|(_, link)| link).collect::<Vec<_>>());
        });
        on_mesh(&row.mesh(), |groups| {
            let (rank, mut engine) = (groups.world().rank(), row.engine(groups.clone()).unwrap());
            let mut links = WorkerLinks::new(PATIENT, deadline);
            sender.send((rank, links.sender())).unwrap();
            let report = engine.serve_round(&mut links, 0, &mut |progress| {
                if rank == 0 {
                    notes.0.lock().unwrap().extend(progress.notes);
                }
                Ok(())
            });
            let mut weights = Vec::new();
            if report.is_ok() {
                engine.disconnect_workers(&mut links, PATIENT).unwrap();
                for root in 0..servers {
                    let tensors = engine.tensors(root).unwrap();
                    if root == rank {
                        weights = tensors;
                    }
                }
            }
            Served { report, weights }
        })
    })
}

/// Connects the worker to the servers; gives its group with them, in which it is the first.
fn connect(connection: u64, servers: &[WorkerLinkSender], deadline: Duration) -> Arc<dyn Collectives> {
    let ranks = 1 + servers.len();
    let mesh = Mesh::new(ranks, [(DP, ranks)]).unwrap();
    let worlds = threads(ranks, Timeouts { step: deadline, ..Timeouts::default() });
    let mut groups = worlds.iter().map(|world| brigade_cpu::groups(world, mesh.clone()).unwrap().over(&[DP]));
    let own = groups.next().unwrap();
    for (group, server) in groups.zip(servers) {
        server.add(WorkerLink { worker: 0, connection, group, leave: Box::new(|| ()) });
    }
    own
}

/// Works until there is nothing more to do.
fn work(row: &Row, group: &Arc<dyn Collectives>) {
    let row = Row { strategy: strategy(group.size() - 1, row.steps, false), ..row.clone() };
    let mut engine = row.engine(Groups::single_rank()).unwrap();
    engine.work_for(group, &|_| RATE, &mut |share: Share| Ok(row.share(share))).unwrap();
}

/// Numbers in parts of 16 bits, as messages carry them.
fn numbers(numbers: &[u64]) -> Option<Part> {
    let parts = |number: &u64| [48, 32, 16, 0].map(|shift| f32::from((number >> shift) as u16));
    let numbers: Vec<f32> = numbers.iter().flat_map(parts).collect();
    let length = numbers.len();
    let tensor = Tensor::from_data(TensorData::new(numbers, [length]), &brigade_cpu::device());
    Some(Part::Float(tensor, vec![length]))
}

fn message(request: &[u64], parts: impl IntoIterator<Item = Option<Part>>) -> Message {
    std::iter::once(numbers(request)).chain(parts).collect()
}

/// Asks a server; gives the shards that it answers with.
fn ask(group: &Arc<dyn Collectives>, request: &[u64], server: usize) -> Message {
    group.send(message(request, []), server).wait().unwrap();
    group.receive(server, &brigade_cpu::device()).wait().unwrap().split_off(1)
}

fn trained() -> Row {
    Row { masked: true, dropout: 0.1, steps: 4, ..Row::default() }
}

fn equal_one_process(served: &[Served], row: &Row, lost: u64) {
    let plain = row.run(Groups::single_rank());
    for (server, Served { report, weights }) in served.iter().enumerate() {
        let report = report.as_ref().unwrap_or_else(|error| panic!("server {server}: {error}"));
        same_bits(weights, &plain.weights, &format!("server {server}"));
        assert_eq!((report.step, report.loss.is_finite()), (row.steps, true));
        assert!(server > 0 || report.round.unwrap().lost == lost);
    }
}

#[test]
fn a_worker_of_its_own_equals_one_process() {
    let row = trained();
    for servers in [1, 2, 3] {
        let served = serve(&row, servers, PATIENT, &Notes::default(), |links| {
            work(&row, &connect(1, links, PATIENT));
        });
        equal_one_process(&served, &row, 0);
    }
}

#[test]
fn an_update_that_the_first_server_has_not_is_not_applied_on_the_second() {
    let row = trained();
    let served = serve(&row, 2, PATIENT, &Notes::default(), |links| {
        let dying = connect(1, links, PATIENT);
        ask(&dying, &SHARE, 1);
        let shards = ask(&dying, &PARAMETERS, 2);
        dying.send(message(&update(), shards), 2).wait().unwrap();
        // The second server is to have it: without, there would be nothing to apply.
        thread::sleep(Duration::from_millis(500));
        drop(dying);
        work(&row, &connect(2, links, PATIENT));
    });
    equal_one_process(&served, &row, 1);
}

#[test]
fn a_worker_that_sends_what_it_should_not_is_dropped_alone() {
    let row = trained();
    // What was found in a share: loss, weight, targets, norm and two metrics.
    let found = || numbers(&[0; 6]);
    let broken = [
        (message(&update(), []), "unexpected push"),
        (message(&update(), [None]), "not a message of a worker or a server"),
        (message(&update(), [numbers(&[0; 2])]), "not a message of a worker or a server"),
        (message(&update(), [found()]), "shards of a different model"),
        (message(&update(), [found(), numbers(&[0; 2])]), "shards of a different model"),
        (message(&SHARE, []), "unexpected request"),
        (message(&PARAMETERS, []), "unexpected request"),
        (message(&[9; 4], []), "not a message of a worker or a server"),
    ];
    let whys = broken.each_ref().map(|(_, why)| *why);
    let notes = Notes::default();
    let served = serve(&row, 1, PATIENT, &notes, |links| {
        for (connection, (message, _)) in (1..).zip(broken) {
            let group = connect(connection, links, PATIENT);
            ask(&group, &SHARE, 1);
            group.send(message, 1).wait().unwrap();
            let began = Instant::now();
            while (notes.gone().len() as u64) < connection {
                assert!(began.elapsed() < PATIENT, "{:?}", notes.gone());
                thread::sleep(Duration::from_millis(10));
            }
        }
        work(&row, &connect(100, links, PATIENT));
    });
    equal_one_process(&served, &row, whys.len() as u64);
    for (note, why) in notes.gone().iter().zip(whys) {
        assert!(note.contains("its share goes to another") && note.contains(why), "{note}");
    }
}

#[test]
fn workers_that_are_all_too_slow_for_a_share_end_the_round() {
    const DEADLINE: Duration = Duration::from_secs(1);
    let served = serve(&trained(), 1, DEADLINE, &Notes::default(), |links| {
        for connection in 1..4 {
            let slow = connect(connection, links, DEADLINE);
            ask(&slow, &SHARE, 1);
            assert!(slow.receive(1, &brigade_cpu::device()).wait().is_err());
        }
    });
    let said = served[0].report.as_ref().unwrap_err().to_string();
    assert!(said.contains("3 times") && said.contains("comm.train_timeout_seconds = 1 s"), "{said}");
}
