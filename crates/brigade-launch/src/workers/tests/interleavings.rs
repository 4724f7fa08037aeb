//! The coordinator's rules under many orders in which workers act and report.

use super::*;

/// What `Member` and the training of a worker do, without connections or tensors.
struct Worker {
    base: Base,
    status: Status,
    reply: Option<CoordinatorReply>,
    quorum: Option<Quorum>,
    requests: u64,
}

impl Worker {
    fn new() -> Self {
        Self { base: START, status: Status::Starting, reply: None, quorum: None, requests: 0 }
    }

    /// Goes on, if what it does is done or the coordinator has answered.
    fn act(&mut self) {
        let reply = self.reply.take();
        self.status = match (&self.status, reply) {
            (Status::Starting | Status::Waiting(_), Some(CoordinatorReply::Train)) => Status::Training,
            (Status::Starting, Some(CoordinatorReply::Join)) => self.request(0),
            (Status::Training, _) => self.request(5),
            (Status::Waiting(_), Some(CoordinatorReply::Quorum { quorum, .. })) => {
                Status::Quorum(self.quorum.insert(quorum).id)
            }
            (Status::Quorum(_), _) => {
                self.base = self.quorum.as_ref().unwrap().base();
                Status::Training
            }
            (same, _) => same.clone(),
        };
    }

    fn request(&mut self, steps: u64) -> Status {
        self.requests += 1;
        Status::Waiting(Request {
            number: self.requests,
            step: self.base.step + steps,
            sums: String::new(),
            transfer: String::new(),
            world: 0,
        })
    }
}

/// Workers that act and report in a random order.
struct Run {
    rules: Rules,
    workers: Vec<Worker>,
    random: u64,
    /// Who contributed to each quorum that a worker was told of.
    met: SortedMap<u64, Vec<usize>>,
}

impl Run {
    fn new(workers: usize, seed: u64) -> Self {
        Self { rules: Rules::new(workers), workers: Vec::new(), random: seed + 1, met: SortedMap::new() }
    }

    fn enter(&mut self) {
        let identity = (self.workers.len(), 1);
        self.rules.quorums.enter(identity, START, Status::Starting).unwrap();
        self.workers.push(Worker::new());
    }

    /// A number below a limit (xorshift).
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) as usize % limit
    }

    /// Lets one of the workers act or report, again and again, with some time in between.
    fn go_on(&mut self, turns: usize, pause: Duration) {
        for _ in 0..turns {
            self.rules.now += pause;
            let number = self.below(self.workers.len());
            let acts = self.below(2) == 0;
            let worker = &mut self.workers[number];
            if acts {
                worker.act();
                continue;
            }
            let reply = self.rules.says(number, worker.base, worker.status.clone());
            if let CoordinatorReply::Quorum { quorum, .. } = &reply {
                self.met.insert(quorum.id, quorum.participants.clone());
            }
            worker.reply = Some(reply);
        }
    }
}

/// Runs of two and three workers in different orders.
fn in_many_orders(check: impl Fn(usize, Run)) {
    for workers in [2, 3] {
        (0..400).for_each(|seed| check(workers, Run::new(workers, seed)));
    }
}

#[test]
fn all_that_are_there_contribute_to_every_outer_step() {
    in_many_orders(|workers, mut run| {
        (0..workers).for_each(|_| run.enter());
        run.go_on(500, Duration::ZERO);
        let all: Vec<usize> = (0..workers).collect();
        assert!(run.met.len() > 4 && run.met.values().all(|met| *met == all), "{:?}", run.met);
    });
}

#[test]
fn one_that_joins_or_was_too_slow_contributes_from_then_on() {
    in_many_orders(|workers, mut run| {
        (1..workers).for_each(|_| run.enter());
        run.go_on(200, SECOND * 4);
        run.enter();
        let before = std::mem::take(&mut run.met).len();
        run.go_on(500, Duration::ZERO);
        let (met, all): (Vec<_>, Vec<_>) = (run.met.values().collect(), (0..workers).collect());
        let joined = met.iter().position(|met| **met == all);
        assert!(before > 0 && joined.is_some_and(|at| at < met.len() / 2), "{met:?}");
        assert!(met.iter().skip(joined.unwrap()).all(|met| **met == all), "{met:?}");
    });
}

#[test]
fn those_that_are_left_go_on_without_one_that_is_gone() {
    in_many_orders(|workers, mut run| {
        (0..workers).for_each(|_| run.enter());
        let turns = 100 + run.below(50);
        run.go_on(turns, Duration::ZERO);
        run.workers.pop();
        run.rules.quorums.lose((workers - 1, 1), run.rules.now);
        run.rules.now += SECOND * 2;
        run.go_on(50, Duration::ZERO);
        run.met.clear();
        run.go_on(500, Duration::ZERO);
        let left: Vec<usize> = (0..workers - 1).collect();
        assert!(run.met.len() > 4 && run.met.values().skip(1).all(|met| *met == left), "{:?}", run.met);
    });
}
