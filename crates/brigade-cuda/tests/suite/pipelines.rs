//! Whole pipelines on the stand-ins: results are right however long anything takes, and nothing waits forever.

use std::time::{Duration, Instant};

use brigade_comm::{DType, OpType, ReduceOp};
use brigade_cuda::GroupCall;
use brigade_plan::PipelineScheduleKind::{self, GPipe, Interleaved, OneFOneB};

use crate::harness::{SOON, assert_contains, count, eventually, in_driver};
use crate::simulation::{Compiles, EXITED, Mesh, OrderKind, Plan, RankExit, Sharding, Sim, run_step};

/// The steps of each case, each with its own delays.
const STEPS: u64 = 20;

/// A case: a mesh, a schedule, and the order between the streams.
#[derive(Clone, Copy)]
struct Case {
    sim: Sim,
    plan: Plan,
    steps: u64,
}

impl Case {
    fn new(schedule: PipelineScheduleKind, pp: usize, micro_batches: usize) -> Self {
        let sim = Sim { mesh: Mesh { pp, dp: 1 }, order: OrderKind::Counter, timeout: SOON };
        let plan = Plan {
            schedule,
            chunks: if schedule == Interleaved { 2 } else { 1 },
            micro_batches,
            sharding: Sharding::Whole,
            sends_block: false,
            takes: Duration::from_micros(600),
            step: 0,
            exit: None,
            compiles: None,
        };
        Self { sim, plan, steps: STEPS }
    }

    fn over(mut self, dp: usize, sharding: Sharding) -> Self {
        self.sim.mesh.dp = dp;
        self.plan.sharding = sharding;
        self
    }

    fn ordered(mut self, order: OrderKind) -> Self {
        self.sim.order = order;
        self
    }

    fn with_blocking_sends(mut self) -> Self {
        self.plan.sends_block = true;
        self
    }

    /// Rank 0 compiles for twice the deadline before `step`.
    fn compiling(mut self, step: u64) -> Self {
        self.plan.compiles = Some(Compiles { step, takes: self.sim.timeout * 2 });
        self
    }

    fn steps(mut self, steps: u64) -> Self {
        self.steps = steps;
        self
    }

    /// Shortens the deadline, but to several times what a whole run of two steps takes now, so that operations meet it easily even
    /// on a loaded machine.
    fn with_short_timeout(mut self) -> Self {
        let case = Self {
            sim: Sim { timeout: SOON, ..self.sim },
            plan: Plan { compiles: None, ..self.plan },
            steps: 2,
        };
        let start = Instant::now();
        case.succeeds();
        let timeout = (start.elapsed() * 4).clamp(Duration::from_millis(700), SOON / 4);
        self.sim.timeout = Duration::from_millis(timeout.as_millis() as u64);
        self
    }

    /// Runs the steps on each rank, one after the other, until one fails.
    fn outcomes(self) -> Vec<Outcome> {
        let Mesh { pp, dp } = self.sim.mesh;
        self.sim.run(|sim| {
            let warms_up = self.plan.compiles.is_some();
            if warms_up {
                sim.world.use_init_timeout();
            }
            let run = || {
                for step in 0..self.steps {
                    // SAFETY: the stand-in's function, of this type.
                    unsafe { in_driver::<unsafe extern "C" fn(u32)>("stand_in_seed")(step as u32) };
                    run_step(&sim, Plan { step, ..self.plan }, dp, pp)?;
                    if step == 0 && warms_up {
                        // Once all ranks have finished the first step.
                        sim.world.barrier().map_err(|error| error.to_string())?;
                        sim.world.use_step_timeout();
                    }
                }
                sim.compute.stream.synchronize_within(SOON).map_err(|error| error.to_string())
            };
            let result = run();
            let (checked, wrong) = sim.compute.found();
            let ended = Instant::now();
            if result == Err(EXITED.to_owned()) && self.plan.exit.is_some_and(|exit| exit.hangs) {
                std::mem::forget(sim);
            }
            Outcome { result, checked, wrong, ended }
        })
    }

    /// All ranks finish, with the right values.
    fn succeeds(self) {
        // Each forward and each backward reads at least one input, twice.
        let least = 2 * 2 * 2 * self.plan.chunks * self.plan.micro_batches * self.steps as usize;
        for (rank, Outcome { result, checked, wrong, .. }) in self.outcomes().into_iter().enumerate() {
            let first = wrong[..wrong.len().min(5)].join("\n");
            assert!(
                wrong.is_empty(),
                "rank {rank}: {} of {checked} reads are wrong:\n{first}\n{result:?}",
                wrong.len()
            );
            assert_eq!(result, Ok(()), "rank {rank}");
            assert!(checked >= least, "rank {rank}: {checked} reads were checked, not {least}");
        }
        assert_eq!((count("misuse"), count("abort")), (0, 0));
    }

    /// One rank exits early: all others fail soon, with an error that names an operation.
    fn fails(self, exit: RankExit) {
        let start = Instant::now();
        let plan = Plan { exit: Some(exit), ..self.plan };
        let outcomes = Self { plan, ..self }.steps(exit.step + 2).outcomes();
        for (rank, Outcome { result, ended, .. }) in outcomes.into_iter().enumerate() {
            let error = result.unwrap_err();
            if rank == exit.rank {
                assert_eq!(error, EXITED);
                continue;
            }
            println!("rank {rank} after {:?}: {error}", ended - start);
            let operations = ["send", "recv", "all_reduce", "all_gather", "reduce_scatter", "barrier"];
            assert!(operations.iter().any(|name| error.contains(name)), "rank {rank}: {error}");
            // The first step, the deadline, and the time until the other ranks learn of it;
            // the deadline grows with the load of the machine.
            assert!(
                ended - start < self.sim.timeout * 8 + Duration::from_secs(5),
                "rank {rank}: {:?}",
                ended - start
            );
        }
    }
}

/// How a rank ended.
struct Outcome {
    result: Result<(), String>,
    /// How many reads of kernels were checked, and which were wrong.
    checked: usize,
    wrong: Vec<String>,
    ended: Instant,
}

/// Tests with a GPU for each rank, whose streams delay each operation by up to 400 µs.
macro_rules! pipelines {
    ($($name:ident: $case:expr;)*) => {
        $(stand_in_test!($name, ["STAND_IN_GPUS" = "8", "STAND_IN_LATE" = "400"], { $case; });)*
    };
}

pipelines! {
    gpipe_on_two_stages: Case::new(GPipe, 2, 4).succeeds();
    gpipe_on_three_stages: Case::new(GPipe, 3, 5).succeeds();
    gpipe_on_four_stages: Case::new(GPipe, 4, 8).succeeds();
    one_f_one_b_on_two_stages: Case::new(OneFOneB, 2, 8).succeeds();
    one_f_one_b_on_three_stages: Case::new(OneFOneB, 3, 6).succeeds();
    one_f_one_b_on_four_stages: Case::new(OneFOneB, 4, 8).succeeds();
    interleaved_on_two_stages: Case::new(Interleaved, 2, 4).succeeds();
    interleaved_on_three_stages: Case::new(Interleaved, 3, 6).succeeds();
    interleaved_on_four_stages: Case::new(Interleaved, 4, 8).succeeds();
    two_by_two: Case::new(OneFOneB, 2, 4).over(2, Sharding::Whole).succeeds();
    two_by_two_interleaved: Case::new(Interleaved, 2, 4).over(2, Sharding::Whole).succeeds();
    two_by_two_sharded: Case::new(OneFOneB, 2, 4).over(2, Sharding::Full).succeeds();
    two_by_two_interleaved_and_sharded: Case::new(Interleaved, 2, 4).over(2, Sharding::Full).succeeds();
    four_by_two_interleaved_and_sharded: Case::new(Interleaved, 4, 8).over(2, Sharding::Full).succeeds();
    three_by_two_gpipe_and_sharded: Case::new(GPipe, 3, 6).over(2, Sharding::Full).succeeds();
}

pipelines! {
    the_host_blocks_with_one_f_one_b: Case::new(OneFOneB, 3, 6).ordered(OrderKind::Host).succeeds();
    the_host_blocks_with_interleaving: Case::new(Interleaved, 2, 4).ordered(OrderKind::Host).succeeds();
    the_host_blocks_with_two_by_two: Case::new(Interleaved, 2, 4).over(2, Sharding::Full).ordered(OrderKind::Host).succeeds();
}

// With replicas that gather parameters, hosts that wait for every send could wait for each other: a receive runs after what was
// computed before it, and that after gathers that other hosts have yet to call.
pipelines! {
    blocking_sends_with_one_f_one_b: Case::new(OneFOneB, 4, 6).with_blocking_sends().succeeds();
    blocking_sends_with_interleaving: Case::new(Interleaved, 3, 6).with_blocking_sends().succeeds();
}

/// Communicators connect when they are first used, which blocks each host until the others get there, too.
macro_rules! connecting_pipelines {
    ($($name:ident: $case:expr;)*) => {
        $(stand_in_test!($name, ["STAND_IN_GPUS" = "8", "STAND_IN_LATE" = "400", "STAND_IN_CONNECTS" = "1"], {
            $case.steps(3).succeeds();
        });)*
    };
}

connecting_pipelines! {
    connecting_on_two_stages: Case::new(OneFOneB, 2, 4);
    connecting_on_four_stages: Case::new(Interleaved, 4, 8);
    connecting_on_two_by_two: Case::new(OneFOneB, 2, 4).over(2, Sharding::Whole);
    connecting_on_two_by_two_interleaved: Case::new(Interleaved, 2, 4).over(2, Sharding::Full);
}

// Two ranks that send to each other wait, in the driver, for what the other's host has not enqueued: an operation must not run
// after others that nobody has waited for. So Brigade does not use events of the whole context.
stand_in_test!(
    an_event_of_the_whole_context_would_deadlock,
    ["STAND_IN_GPUS" = "2", "STAND_IN_LATE" = "400"],
    {
        let case = Case::new(OneFOneB, 2, 8).with_short_timeout().ordered(OrderKind::WholeContext);
        let timeout = format!("did not finish within {} s", case.sim.timeout.as_secs_f64());
        for Outcome { result, .. } in case.outcomes() {
            let error = result.unwrap_err();
            println!("{error}");
            assert!(["send (number", "recv (number"].iter().any(|name| error.contains(name)), "{error}");
            assert!(error.contains(&timeout), "{error}");
        }
    }
);

/// In the second step, in the middle.
const IN_THE_MIDDLE: RankExit = RankExit { rank: 1, step: 1, action: 7, hangs: false };

pipelines! {
    all_fail_if_a_rank_returns_early: Case::new(OneFOneB, 3, 6).with_short_timeout().fails(IN_THE_MIDDLE);
    all_fail_if_a_rank_hangs:
        Case::new(OneFOneB, 3, 6).with_short_timeout().fails(RankExit { hangs: true, ..IN_THE_MIDDLE });
    all_fail_if_the_first_stage_hangs: Case::new(Interleaved, 3, 6)
        .with_short_timeout()
        .fails(RankExit { rank: 0, hangs: true, ..IN_THE_MIDDLE });
    all_fail_if_a_replica_hangs: Case::new(OneFOneB, 2, 4)
        .over(2, Sharding::Full)
        .with_short_timeout()
        .fails(RankExit { rank: 3, hangs: true, ..IN_THE_MIDDLE });
    all_fail_if_a_replica_hangs_and_the_host_blocks: Case::new(OneFOneB, 2, 4)
        .over(2, Sharding::Full)
        .ordered(OrderKind::Host)
        .with_short_timeout()
        .fails(RankExit { rank: 3, hangs: true, ..IN_THE_MIDDLE });
}

// In the first step, the others wait until a rank has compiled its kernels.
stand_in_test!(the_first_step_may_take_longer, ["STAND_IN_GPUS" = "4"], {
    Case::new(OneFOneB, 2, 4).over(2, Sharding::Whole).with_short_timeout().compiling(0).steps(3).succeeds();
});

stand_in_test!(
    the_first_step_may_take_longer_if_it_connects,
    ["STAND_IN_GPUS" = "2", "STAND_IN_CONNECTS" = "1"],
    {
        Case::new(OneFOneB, 1, 4)
            .over(2, Sharding::Whole)
            .with_short_timeout()
            .compiling(0)
            .steps(3)
            .succeeds();
    }
);

stand_in_test!(the_second_step_may_not_take_longer, ["STAND_IN_GPUS" = "2"], {
    let case = Case::new(OneFOneB, 1, 4).over(2, Sharding::Whole).with_short_timeout().compiling(1);
    let timeout = format!("did not finish within {} s", case.sim.timeout.as_secs_f64());
    let outcomes = case.steps(3).outcomes();
    let error = outcomes[1].result.as_ref().unwrap_err();
    // The barrier after the first step may be overdue first.
    let nccl = error.contains("all_reduce (number") && error.contains(&timeout);
    assert!(nccl || error.contains("gave up barrier"), "{error}");
});

// This driver cannot make a context wait.
stand_in_test!(all_fail_if_one_rank_fails_after_it_started_an_operation, ["STAND_IN_DRIVER" = "12040"], {
    let sim = Sim { mesh: Mesh { pp: 1, dp: 2 }, order: OrderKind::Counter, timeout: SOON };
    sim.run(|rank| {
        let memory = rank.pool.allocate(4, &rank.compute);
        let address = memory.place().address();
        let enqueue = |call: &GroupCall<'_>| {
            // SAFETY: it is held until the operation is done.
            unsafe { call.all_reduce(address, address, 4, DType::I64, ReduceOp::Sum) }
        };
        let comm_stream = rank.dp.as_ref().unwrap();
        let work = comm_stream
            .start(OpType::AllReduce, (DType::I64, 32), Box::new(memory.clone()), enqueue)
            .unwrap();
        if rank.replica == 0 {
            assert_contains(&work.synchronize().unwrap_err().to_string(), &["12.5 or later"]);
            eventually("its failure", || rank.world.failure().is_some());
        } else {
            eventually("the other's failure", || rank.world.failure().is_some());
            assert_contains(&rank.world.failure().unwrap().to_string(), &["rank 0", "12.5 or later"]);
        }
    });
});
