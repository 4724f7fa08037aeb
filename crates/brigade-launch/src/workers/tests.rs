//! Workers in threads, over real connections.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use brigade_comm::AuthToken;
use brigade_sorted::SortedMap;

use super::message::{CoordinatorReply, VERSION};
use super::quorum::Quorums;
use super::*;

mod interleavings;

const SECOND: Duration = Duration::from_secs(1);

/// What a worker says, and the coordinator's rules.
struct Rules {
    quorums: Quorums,
    now: Instant,
    requests: u64,
}

impl Rules {
    fn new(workers: usize) -> Self {
        Self { quorums: Quorums::new(workers, SECOND * 10, SECOND * 3), now: Instant::now(), requests: 0 }
    }

    fn start(&mut self, worker: usize, incarnation: u64, base: Base) -> CoordinatorReply {
        self.quorums.enter((worker, incarnation), base, Status::Starting).unwrap();
        self.quorums.report((worker, incarnation), base, Status::Starting, self.now)
    }

    fn says(&mut self, worker: usize, base: Base, status: Status) -> CoordinatorReply {
        self.quorums.report((worker, 1), base, status, self.now)
    }

    /// A request after `steps` more than those of the base; asked again, it is the same one.
    fn ask(&mut self, worker: usize, base: Base, steps: u64, world: u64) -> Request {
        self.requests += 1;
        let request = Request {
            number: self.requests,
            step: base.step + steps,
            sums: format!("sums-{worker}"),
            transfer: format!("transfer-{worker}"),
            world,
        };
        self.says(worker, base, Status::Waiting(request.clone()));
        request
    }

    fn report(&mut self, worker: usize, base: Base, request: &Request) -> Option<Quorum> {
        match self.says(worker, base, Status::Waiting(request.clone())) {
            CoordinatorReply::Quorum { request: number, quorum } => {
                assert_eq!(number, request.number);
                Some(quorum)
            }
            CoordinatorReply::Noted | CoordinatorReply::Expects { .. } => None,
            other => panic!("{other:?}"),
        }
    }
}

const START: Base = Base { step: 0, quorum: 0 };

#[test]
fn all_meet_and_keep_their_world() {
    let mut rules = Rules::new(2);
    assert_eq!(
        [0, 1].map(|worker| rules.start(worker, 1, START)),
        [CoordinatorReply::Train, CoordinatorReply::Train]
    );
    let first = rules.ask(0, START, 5, 0);
    assert_eq!(rules.report(0, START, &first), None, "the other one is still training");
    let second = rules.ask(1, START, 5, 0);
    let quorum = rules.report(0, START, &first).unwrap();
    assert_eq!(rules.report(1, START, &second).as_ref(), Some(&quorum));
    assert_eq!((&quorum.participants, quorum.keeps_world, quorum.step), (&vec![0, 1], false, 5));
    assert_eq!(quorum.sums, "sums-0");
    let base = quorum.base();
    for worker in [0, 1] {
        rules.says(worker, base, Status::Training);
    }
    let requests = [0, 1].map(|worker| rules.ask(worker, base, 5, quorum.id));
    let next = rules.report(0, base, &requests[0]).unwrap();
    assert!(next.keeps_world && next.id > quorum.id && next.step == 10);
}

#[test]
fn a_quorum_that_failed_for_all_is_repeated_without_the_dead() {
    let mut rules = Rules::new(3);
    (0..3).for_each(|worker| drop(rules.start(worker, 1, START)));
    let requests = [0, 1, 2].map(|worker| rules.ask(worker, START, 5, 0));
    let quorum = rules.report(0, START, &requests[0]).unwrap();
    assert_eq!(quorum.participants, [0, 1, 2]);
    rules.quorums.lose((1, 1), rules.now);
    let again = rules.ask(0, START, 5, 0);
    assert_eq!(rules.report(0, START, &again), None, "worker 2 may have the result");
    let last = rules.ask(2, START, 5, 0);
    assert_eq!(rules.report(0, START, &again), None, "worker 1 may call again");
    rules.now += SECOND * 2;
    let repeated = rules.report(0, START, &again).unwrap();
    assert_eq!(rules.report(2, START, &last).as_ref(), Some(&repeated));
    assert_eq!((repeated.participants, repeated.keeps_world), (vec![0, 2], false));
}

#[test]
fn one_that_has_the_result_gives_it_to_those_without() {
    let mut rules = Rules::new(2);
    (0..2).for_each(|worker| drop(rules.start(worker, 1, START)));
    let requests = [0, 1].map(|worker| rules.ask(worker, START, 5, 0));
    let quorum = rules.report(0, START, &requests[0]).unwrap();
    rules.says(0, quorum.base(), Status::Training);
    // For worker 1 the sum failed.
    let again = rules.ask(1, START, 5, 0);
    rules.now += SECOND * 100;
    assert_eq!(rules.report(1, START, &again), None, "it waits for the one that has the result");
    let request = rules.ask(0, quorum.base(), 5, 0);
    let next = rules.report(0, quorum.base(), &request).unwrap();
    assert_eq!((&next.participants, &next.recovering), (&vec![0], &vec![1]));
    assert_eq!(rules.report(1, START, &again), Some(next));
}

#[test]
fn participants_that_have_not_told_the_result_are_waited_for_unless_they_hang_or_are_gone() {
    let end_of_wait = |rules: &mut Rules| rules.now += SECOND * 11;
    let gone = |rules: &mut Rules| {
        rules.quorums.lose((1, 1), rules.now);
        rules.now += SECOND * 2;
    };
    let ends: [&dyn Fn(&mut Rules); 2] = [&end_of_wait, &gone];
    for end in ends {
        let mut rules = Rules::new(2);
        (0..2).for_each(|worker| drop(rules.start(worker, 1, START)));
        let requests = [0, 1].map(|worker| rules.ask(worker, START, 5, 0));
        let quorum = rules.report(0, START, &requests[0]).unwrap();
        // Worker 0 has made its next inner steps before worker 1 knows of the quorum.
        let next = rules.ask(0, quorum.base(), 5, quorum.id);
        assert_eq!(rules.report(0, quorum.base(), &next), None, "worker 1 is about to begin");
        assert_eq!(rules.report(1, START, &requests[1]).as_ref(), Some(&quorum));
        rules.says(1, START, Status::Quorum(quorum.id));
        assert_eq!(rules.report(0, quorum.base(), &next), None, "worker 1 adds up");
        end(&mut rules);
        let alone = rules.report(0, quorum.base(), &next).unwrap();
        assert_eq!((alone.participants, alone.recovering), (vec![0], vec![]));
    }
}

#[test]
fn one_that_takes_over_the_result_is_waited_for() {
    let mut rules = Rules::new(2);
    rules.start(0, 1, START);
    let request = rules.ask(0, START, 5, 0);
    rules.now += SECOND * 11;
    let alone = rules.report(0, START, &request).unwrap();
    rules.says(0, alone.base(), Status::Training);
    assert_eq!(rules.start(1, 1, START), CoordinatorReply::Join);
    let join = rules.ask(1, START, 0, 0);
    let request = rules.ask(0, alone.base(), 5, alone.id);
    let quorum = rules.report(1, START, &join).unwrap();
    assert_eq!((&quorum.participants, &quorum.recovering), (&vec![0], &vec![1]));
    assert_eq!(rules.report(0, alone.base(), &request).as_ref(), Some(&quorum));
    rules.says(1, START, Status::Quorum(quorum.id));
    let request = rules.ask(0, quorum.base(), 5, quorum.id);
    assert_eq!(rules.report(0, quorum.base(), &request), None, "worker 1 loads the parameters");
    rules.says(1, quorum.base(), Status::Training);
    assert_eq!(rules.report(0, quorum.base(), &request), None, "worker 1 trains");
    rules.ask(1, quorum.base(), 5, 0);
    let both = rules.report(0, quorum.base(), &request).unwrap();
    assert_eq!((both.participants, both.recovering), (vec![0, 1], vec![]));
}

#[test]
fn workers_that_have_not_come_are_named_and_waited_for_up_to_a_limit() {
    let mut rules = Rules::new(4);
    (1..3).for_each(|worker| drop(rules.start(worker, 1, START)));
    let request = rules.ask(2, START, 5, 0);
    let expects = |rules: &mut Rules| match rules.says(2, START, Status::Waiting(request.clone())) {
        CoordinatorReply::Expects { expects } => expects,
        other => panic!("{other:?}"),
    };
    let said = "waiting for workers 0, 3 (at most 10 s, --wait-seconds of brigade coordinate)";
    assert_eq!([expects(&mut rules), expects(&mut rules)], [said, said]);
    rules.start(0, 1, START);
    assert!(expects(&mut rules).starts_with("waiting for worker 3 (at most 10 s"));
    let lines = rules.quorums.drain_messages();
    assert_eq!(lines.iter().filter(|line| *line == said).count(), 1, "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("waiting")).count(), 2, "{lines:?}");
    rules.now += SECOND * 11;
    assert_eq!(rules.report(2, START, &request).unwrap().participants, [2]);
}

/// The workers of a coordinator before this one call again soon; who does not is gone.
#[test]
fn a_coordinator_that_is_started_again_waits_only_for_those_that_may_call_again() {
    let base = Base { step: 10, quorum: 7 };
    let begun = |status: &Status| {
        let mut rules = Rules::new(2);
        rules.quorums.enter((0, 1), base, status.clone()).unwrap();
        rules.says(0, base, status.clone());
        let request = rules.ask(0, base, 5, 0);
        assert_eq!(rules.report(0, base, &request), None, "worker 1 may call again");
        rules.now += SECOND * 4;
        (rules, request)
    };
    let (mut again, request) = begun(&Status::Training);
    let lines = again.quorums.drain_messages();
    assert!(lines.iter().any(|line| line.contains("worker 1 (at most 3 s, --host-timeout of")), "{lines:?}");
    assert_eq!(again.report(0, base, &request).unwrap().participants, [0]);
    // With workers that continue from checkpoints, the run begins.
    let (mut resumed, request) = begun(&Status::Starting);
    assert_eq!(resumed.report(0, base, &request), None, "worker 1 may still come");
    resumed.now += SECOND * 7;
    assert_eq!(resumed.report(0, base, &request).unwrap().participants, [0]);
}

#[test]
fn late_workers_are_waited_for_up_to_a_limit_and_join_at_the_next_meeting() {
    let mut rules = Rules::new(3);
    (0..2).for_each(|worker| drop(rules.start(worker, 1, START)));
    let requests = [0, 1].map(|worker| rules.ask(worker, START, 5, 0));
    assert_eq!(rules.report(0, START, &requests[0]), None, "worker 2 may still come");
    rules.now += SECOND * 11;
    let quorum = rules.report(0, START, &requests[0]).unwrap();
    let base = quorum.base();
    [0, 1].into_iter().for_each(|worker| drop(rules.says(worker, base, Status::Training)));
    assert_eq!(rules.start(2, 1, START), CoordinatorReply::Join);
    let join = rules.ask(2, START, 0, 0);
    assert_eq!(rules.report(2, START, &join), None);
    let slow = rules.ask(0, base, 5, quorum.id);
    rules.now += SECOND * 11;
    let next = rules.report(0, base, &slow).unwrap();
    assert_eq!((&next.participants, &next.recovering, next.keeps_world), (&vec![0], &vec![2], false));
    // Worker 1 was too slow: what it has is older now.
    let behind = rules.ask(1, base, 5, 0);
    [0, 2].into_iter().for_each(|worker| drop(rules.says(worker, next.base(), Status::Training)));
    assert_eq!(rules.report(1, base, &behind), None);
    let requests = [0, 2].map(|worker| rules.ask(worker, next.base(), 5, 0));
    let third = rules.report(2, next.base(), &requests[1]).unwrap();
    assert_eq!((third.participants, third.recovering), (vec![0, 2], vec![1]));
}

#[test]
fn when_the_newest_parameters_are_lost_the_others_go_on() {
    let mut rules = Rules::new(2);
    (0..2).for_each(|worker| drop(rules.start(worker, 1, START)));
    let requests = [0, 1].map(|worker| rules.ask(worker, START, 5, 0));
    let quorum = rules.report(0, START, &requests[0]).unwrap();
    rules.says(0, quorum.base(), Status::Training);
    let again = rules.ask(1, START, 5, 0);
    rules.quorums.lose((0, 1), rules.now);
    rules.now += SECOND * 2;
    let alone = rules.report(1, START, &again).unwrap();
    assert_eq!((&alone.participants, alone.step), (&vec![1], 5));
    // A replacement that knows less joins; one that knows as much trains.
    rules.says(1, alone.base(), Status::Training);
    assert_eq!(rules.start(0, 2, START), CoordinatorReply::Join);
}

#[test]
fn a_number_has_one_worker_and_the_end_is_told() {
    let mut rules = Rules::new(2);
    rules.start(0, 1, START);
    let refused = rules.quorums.enter((0, 2), START, Status::Starting).unwrap_err();
    assert!(refused.contains("worker 0"), "{refused}");
    rules.quorums.lose((0, 1), rules.now);
    assert_eq!(rules.start(0, 2, START), CoordinatorReply::Train);
    let answer = rules.says(0, START, Status::Training);
    assert!(
        matches!(answer, CoordinatorReply::Refused { again: false, .. }),
        "the first one is replaced: {answer:?}"
    );
    let end = Base { step: 10, quorum: 3 };
    assert!(!rules.quorums.is_over(rules.now));
    rules.quorums.report((0, 2), end, Status::Done, rules.now);
    assert!(rules.quorums.is_over(rules.now));
    assert_eq!(rules.start(1, 1, START), CoordinatorReply::Over { step: 10 });
}

fn join_request(worker: usize) -> WorkerJoinRequest {
    WorkerJoinRequest {
        version: VERSION,
        worker,
        workers: 2,
        ranks: 1,
        host: "h".into(),
        configuration: "seed = 1".into(),
        incarnation: 7 + worker as u64,
    }
}

fn coordinator() -> Coordinator {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Coordinator::start(listener, token(), 2, SECOND * 5, SECOND * 3).unwrap()
}

fn token() -> AuthToken {
    AuthToken::new("a-token-of-the-workers")
}

fn member(coordinator: &Coordinator, who: WorkerJoinRequest, token: AuthToken) -> Member {
    Member::start(coordinator.address().to_string(), token, who, START, SECOND * 5, SECOND * 3).unwrap()
}

fn asked(member: &Member, base: Base, number: u64) -> Quorum {
    let address = member.address().unwrap();
    let request = Request {
        number,
        step: base.step + 5,
        sums: format!("{address}:1"),
        transfer: format!("{address}:2"),
        world: 0,
    };
    member.set(base, Status::Waiting(request));
    match member.decision(SECOND * 20).unwrap() {
        Some(CoordinatorDecision::Quorum(quorum)) => quorum,
        other => panic!("{other:?}"),
    }
}

#[test]
fn workers_meet_over_connections_and_a_dead_one_is_left_behind() {
    let coordinator = coordinator();
    let first = member(&coordinator, join_request(0), token());
    let second = member(&coordinator, join_request(1), token());
    for member in [&first, &second] {
        assert_eq!(member.decision(SECOND * 20).unwrap(), Some(CoordinatorDecision::Train));
        member.set(START, Status::Training);
    }
    let other = std::thread::spawn(move || {
        let quorum = asked(&second, START, 1);
        (second, quorum)
    });
    let quorum = asked(&first, START, 1);
    let (second, same) = other.join().unwrap();
    assert_eq!(same, quorum);
    assert_eq!(quorum.sums, "127.0.0.1:1");
    first.set(quorum.base(), Status::Training);
    drop(second);
    let alone = asked(&first, quorum.base(), 2);
    assert_eq!((alone.participants.as_slice(), alone.step), ([0].as_slice(), 10));
    assert!(!coordinator.is_over());
    first.set(alone.base(), Status::Done);
    drop(first);
    let begin = Instant::now();
    while !coordinator.is_over() {
        assert!(begin.elapsed() < SECOND * 20);
        std::thread::sleep(SECOND / 50);
    }
}

#[test]
fn who_does_not_fit_is_told_why() {
    let coordinator = coordinator();
    let first = member(&coordinator, join_request(0), token());
    first.decision(SECOND * 20).unwrap();
    let refused = |who: WorkerJoinRequest, token| {
        let error = member(&coordinator, who, token).decision(SECOND * 20).unwrap_err().to_string();
        assert!(error.contains("--coordinator"), "{error}");
        error
    };
    let said = refused(WorkerJoinRequest { workers: 3, ..join_request(1) }, token());
    assert!(said.contains("this worker has --workers 3, and the coordinator 2"), "{said}");
    let said = refused(WorkerJoinRequest { worker: 2, ..join_request(1) }, token());
    assert!(said.contains("--worker 2 is not valid: it must be below --workers 2"), "{said}");
    let said = refused(WorkerJoinRequest { configuration: "seed = 2".into(), ..join_request(1) }, token());
    assert!(said.contains("`seed = 2` here, `seed = 1` on worker 0"), "{said}");
    let said = refused(join_request(1), AuthToken::new("another-token-than-theirs"));
    assert!(said.contains("BRIGADE_TOKEN"), "{said}");
    let begin = Instant::now();
    let said = refused(WorkerJoinRequest { incarnation: 99, ..join_request(0) }, token());
    assert!(said.contains("there is already a worker 0"), "{said}");
    assert!(begin.elapsed() > SECOND * 3, "the one before may be gone");
}

/// One that was stopped to correct its settings comes back with others.
#[test]
fn nobody_is_held_to_the_configuration_of_workers_that_are_gone() {
    let coordinator = coordinator();
    let wrong = member(
        &coordinator,
        WorkerJoinRequest { configuration: "seed = 2".into(), ..join_request(0) },
        token(),
    );
    wrong.decision(SECOND * 20).unwrap();
    drop(wrong);
    let begin = Instant::now();
    let mut messages = Vec::new();
    while !messages.iter().any(|message: &String| message.contains("worker 0 is gone")) {
        assert!(begin.elapsed() < SECOND * 20);
        std::thread::sleep(SECOND / 50);
        assert!(!coordinator.is_over());
        messages.extend(coordinator.drain_messages());
    }
    let right = member(&coordinator, WorkerJoinRequest { incarnation: 99, ..join_request(0) }, token());
    assert_eq!(right.decision(SECOND * 20).unwrap(), Some(CoordinatorDecision::Train));
    let other = WorkerJoinRequest { configuration: "seed = 2".into(), ..join_request(1) };
    let said = member(&coordinator, other, token()).decision(SECOND * 20).unwrap_err().to_string();
    assert!(said.contains("`seed = 2` here, `seed = 1` on worker 0"), "{said}");
}

#[test]
fn a_coordinator_that_is_started_again_learns_who_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let begin = |listener| Coordinator::start(listener, token(), 1, SECOND * 5, SECOND * 3).unwrap();
    let first = begin(listener);
    let worker = member(&first, WorkerJoinRequest { workers: 1, ..join_request(0) }, token());
    assert_eq!(worker.decision(SECOND * 20).unwrap(), Some(CoordinatorDecision::Train));
    let quorum = asked(&worker, START, 1);
    worker.set(quorum.base(), Status::Training);
    drop(first);
    let second = begin(TcpListener::bind(address).unwrap());
    let next = asked(&worker, quorum.base(), 2);
    assert_eq!((next.step, next.participants.as_slice()), (10, [0].as_slice()));
    assert!(next.id > quorum.id);
    drop((worker, second));
}
