//! The parameter server: with a staleness of 0 it equals plain training; above, it equals the same updates made in one process where
//! their order is known, and keeps its bound where it is not.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use brigade::core::{
    AsyncServer, Error, Groups, NamedTensor, NonFinite, ParameterServers, Rounds, Share, StepReport,
    Strategy, Synchronous, Zero,
};

use crate::mesh::{equals_one_process, on_mesh, same_bits};
use crate::resume::{Saved, every_row_goes_on_from_every_row, snapshot};
use crate::row::{Gpt, MIXED, RATE, Row};

fn waiting(servers: usize) -> Arc<dyn Strategy> {
    Arc::new(AsyncServer(ParameterServers { count: servers, rounds: None, separate: None }))
}

fn rounds(servers: usize, steps: u64, staleness: u64, delay_compensation: f64) -> Arc<dyn Strategy> {
    let rounds = Some(Rounds { steps, staleness, delay_compensation });
    Arc::new(AsyncServer(ParameterServers { count: servers, rounds, separate: None }))
}

/// Numbers of servers and workers, of which each has `4 / workers` micro-batches of a step.
const WORLDS: [(usize, usize); 5] = [(1, 1), (1, 2), (2, 2), (3, 1), (2, 4)];

fn with_servers(base: &Row) -> Vec<Row> {
    let row = |(servers, workers)| Row {
        dp: servers + workers,
        micro_batches: 4 / workers,
        strategy: waiting(servers),
        ..base.clone()
    };
    WORLDS.into_iter().map(row).collect()
}

#[test]
fn servers_that_wait_for_all_equal_one_process() {
    let base = Row { masked: true, clipping: Some(0.3), steps: 3, ..Row::default() };
    for row in with_servers(&base) {
        equals_one_process(&row);
        equals_one_process(&Row { tied: true, dropout: 0.1, precision: MIXED, offload: true, ..row });
    }
    let uneven = Row { dp: 5, micro_batches: 1, strategy: waiting(2), optimizer: "lion", ..base };
    equals_one_process(&uneven);
}

#[test]
fn another_strategy_and_other_servers_go_on_from_what_servers_saved() {
    let base = Row { masked: true, tied: true, ..Row::default() };
    let sync = |(dp, stage)| Row {
        dp,
        micro_batches: 4 / dp,
        zero: Zero { stage, ..Zero::default() },
        ..base.clone()
    };
    let mut rows: Vec<Row> = [(1, 0), (2, 1), (4, 3)].map(sync).into();
    rows.extend(with_servers(&base).into_iter().skip(1));
    every_row_goes_on_from_every_row(&rows);
}

/// What a rank has after a round.
struct Outcome {
    report: StepReport,
    weights: Vec<NamedTensor>,
    saved: (Vec<brigade::checkpoints::UnitMetadata>, Vec<brigade::checkpoints::WriteItem>),
    shares: Vec<Share>,
}

/// One round, in which `before` is called with each share that a rank takes.
fn round(row: &Row, before: impl Fn(usize, Share) + Sync) -> Vec<Outcome> {
    on_mesh(&row.mesh(), |groups| {
        let (rank, mut engine) = (groups.world().rank(), row.engine(groups.clone()).unwrap());
        let mut shares = Vec::new();
        let mut read = |share: Share| {
            before(rank, share);
            shares.push(share);
            Ok(row.share(share))
        };
        let report = engine.round(&|_| RATE, &mut read, &mut |_| Ok(())).unwrap();
        Outcome { report, weights: weights(&engine, &groups), saved: snapshot(&engine), shares }
    })
}

fn weights(engine: &Gpt, groups: &Groups) -> Vec<NamedTensor> {
    let mut own = Vec::new();
    for root in 0..groups.world().size() {
        let tensors = engine.tensors(root).unwrap();
        if root == groups.world().rank() {
            own = tensors;
        }
    }
    own
}

impl Row {
    /// The micro-batches of a share.
    pub(crate) fn share(
        &self,
        share: Share,
    ) -> Vec<brigade::core::Batch<brigade::models::Tokens, brigade::models::gpt::Targets>> {
        let first = share.number * self.micro_batches;
        (first..first + self.micro_batches).map(|number| self.batch(share.step - 1, number)).collect()
    }
}

/// Nothing is ever late for a worker that is alone, so delay compensation changes nothing either.
#[test]
fn a_worker_that_is_alone_equals_one_process() {
    let base = Row { masked: true, dropout: 0.1, steps: 4, ..Row::default() };
    let plain = base.run(Groups::single_rank());
    for (servers, delay_compensation) in [(1, 0.0), (3, 0.0), (2, 0.5)] {
        let strategy = rounds(servers, base.steps, 1, delay_compensation);
        let row = Row { dp: servers + 1, strategy, ..base.clone() };
        for outcome in round(&row, |_, _| ()) {
            same_bits(&outcome.weights, &plain.weights, &format!("{row:?}"));
            let found = outcome.report.round.unwrap();
            assert_eq!((found.steps, found.staleness_most, found.waits), (base.steps, 0.0, 0));
            let targets: u64 = plain.reports.iter().map(|report| report.targets).sum();
            assert_eq!((outcome.report.step, outcome.report.targets), (base.steps, targets));
        }
    }
    let clipped = Row { clipping: Some(0.3), ..base };
    let plain = clipped.run(Groups::single_rank());
    let row = Row { dp: 3, strategy: rounds(2, clipped.steps, 1, 0.0), ..clipped };
    same_bits(&round(&row, |_, _| ())[0].weights, &plain.weights, "each share is clipped by its norm");
}

type Values = BTreeMap<String, Vec<f32>>;

fn zip(a: &Values, b: &Values, with: impl Fn(f32, f32) -> f32) -> Values {
    let of = |(name, a): (&String, &Vec<f32>)| {
        (name.clone(), a.iter().zip(&b[name]).map(|(a, b)| with(*a, *b)).collect())
    };
    a.iter().map(of).collect()
}

fn values(tensors: &[NamedTensor]) -> Values {
    tensors.iter().map(|t| (t.name.clone(), t.data.as_slice::<f32>().unwrap().to_vec())).collect()
}

/// Of two workers the first pushes before the second, and both gradients are of the first parameters.
#[test]
fn a_late_gradient_is_applied_as_the_formulas_say() {
    const MOMENTUM: f32 = 0.9;
    for lambda in [0.0f32, 2.0] {
        let strategy = rounds(1, 1, 1, f64::from(lambda));
        let row = Row { dp: 3, micro_batches: 2, optimizer: "sgd", strategy, ..Row::default() };
        // Both have a share before either computes, and worker 1 goes on only when worker 0 has been told that the round is over.
        let (taken, pushed) = (Mutex::new(0), Condvar::new());
        let first_is_over = Mutex::new(false);
        let told = Condvar::new();
        let outcomes = on_mesh(&row.mesh(), |groups| {
            let (rank, mut engine) = (groups.world().rank(), row.engine(groups.clone()).unwrap());
            let mut read = |share: Share| {
                let mut number = taken.lock().unwrap();
                *number += 1;
                pushed.notify_all();
                drop(pushed.wait_while(number, |number| *number < 2).unwrap());
                if share.number == 1 {
                    drop(told.wait_while(first_is_over.lock().unwrap(), |over| !*over).unwrap());
                }
                Ok(row.share(share))
            };
            let mut watch = |updates: u64| {
                // The first update has been made.
                *first_is_over.lock().unwrap() = updates >= 1;
                told.notify_all();
                Ok(())
            };
            let report = engine.round(&|_| RATE, &mut read, &mut watch).unwrap();
            (rank, report, weights(&engine, &groups))
        });
        let one = Row { micro_batches: 2, strategy: Arc::new(Synchronous::default()), ..row.reference() };
        let mut engine = one.engine(Groups::single_rank()).unwrap();
        let before = values(&engine.tensors(0).unwrap());
        let [first, second] = [0, 1].map(|number| {
            let batches: Vec<_> = (2 * number..2 * number + 2).map(|number| one.batch(0, number)).collect();
            values(&engine.gradients(&batches, 0).unwrap().1)
        });
        let rate = (RATE / 2.0) as f32;
        let after_first = zip(&before, &first, |value, gradient| value - gradient * rate);
        let moved = zip(&after_first, &before, |now, then| now - then);
        let delay = zip(&zip(&second, &second, |a, b| a * b), &moved, |square, moved| square * moved);
        let second = match lambda {
            0.0 => second,
            _ => zip(&second, &delay, |gradient, delay| gradient + delay * lambda),
        };
        let velocity = zip(&second, &first, |gradient, old| gradient + old * MOMENTUM);
        let last = zip(&after_first, &velocity, |value, velocity| value - velocity * rate);
        assert_ne!(last, after_first);
        for (rank, report, weights) in outcomes {
            assert_eq!(values(&weights), last, "rank {rank}, lambda {lambda}");
            let found = report.round.unwrap();
            assert_eq!((found.staleness_mean, found.staleness_most), (0.25, 0.5));
        }
    }
}

#[test]
fn workers_take_each_share_once_and_keep_the_bound() {
    const STEPS: u64 = 6;
    for (servers, staleness) in [(1, 1), (2, 1), (2, 50)] {
        let strategy = rounds(servers, STEPS, staleness, 0.0);
        let row = Row { dp: 3 + servers, micro_batches: 1, strategy, masked: true, ..Row::default() };
        // Worker 2 is slow.
        let outcomes = round(&row, |rank, _| {
            if rank == 2 {
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        let mut shares: Vec<(u64, usize)> = outcomes
            .iter()
            .flat_map(|outcome| &outcome.shares)
            .map(|share| (share.step, share.number))
            .collect();
        shares.sort_unstable();
        let all: Vec<_> = (1..=STEPS).flat_map(|step| (0..3).map(move |number| (step, number))).collect();
        assert_eq!(shares, all, "each share once");
        assert!(outcomes[2].shares.len() < outcomes[0].shares.len(), "the slow worker takes fewer");
        let first = &outcomes[0];
        let targets: usize =
            all.iter().map(|(step, number)| row.batch(step - 1, *number).valid_targets).sum();
        for outcome in &outcomes {
            same_bits(&outcome.weights, &first.weights, "after a round all ranks have the same");
            let (report, found) = (&outcome.report, outcome.report.round.unwrap());
            assert_eq!((report.step, report.targets), (STEPS, targets as u64));
            assert_eq!(
                (Some(found), report.loss.to_bits()),
                (first.report.round, first.report.loss.to_bits())
            );
            assert!(report.loss.is_finite() && report.grad_norm > 0.0 && report.metrics.len() == 2);
            assert!(found.staleness_most <= staleness as f64 + 2.0, "{found:?}");
            match staleness {
                1 => assert!(found.waits > 0 && found.waited > Duration::ZERO, "{found:?}"),
                _ => assert_eq!((found.waits, found.waited), (0, Duration::ZERO)),
            }
        }
        // What servers save is whole.
        let saved = Saved::of(outcomes.into_iter().map(|outcome| outcome.saved).collect());
        let one = Row { dp: 1, micro_batches: 3, strategy: Arc::new(Synchronous::default()), ..row.clone() };
        let mut engine = one.engine(Groups::single_rank()).unwrap();
        engine.restore(STEPS, &mut &saved).unwrap();
        engine.step((0..3).map(|number| one.batch(STEPS, number)).collect(), RATE).unwrap();
        let refused = on_mesh(&row.mesh(), |groups| {
            row.engine(groups).unwrap().restore(STEPS + 1, &mut &saved).unwrap_err().to_string()
        });
        assert!(
            refused.iter().all(|why| why.contains("cannot resume from step 7: it must be a multiple of 6"))
        );
    }
}

#[test]
fn a_share_that_is_not_finite_is_left_out_or_ends_its_worker() {
    let poisoned = |row: &Row, share: Share| {
        let mut batches = row.share(share);
        if (share.step, share.number) == (2, 1) {
            let target = &mut batches[0].target;
            target.mask = target.mask.take().map(|mask| mask * f32::INFINITY);
        }
        Ok(batches)
    };
    let row = Row {
        dp: 3,
        micro_batches: 1,
        strategy: rounds(1, 3, 2, 0.0),
        masked: true,
        on_nonfinite: NonFinite::Skip,
        ..Row::default()
    };
    let reports = on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups).unwrap();
        engine.round(&|_| RATE, &mut |share| poisoned(&row, share), &mut |_| Ok(())).unwrap()
    });
    for report in reports {
        assert_eq!((report.skipped, report.round.unwrap().skipped), (false, 1));
        assert!(report.loss.is_finite() && report.grad_norm.is_finite());
    }
    let row = Row { on_nonfinite: NonFinite::Stop, ..row };
    let errors = on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        engine
            .round(&|_| RATE, &mut |share| poisoned(&row, share), &mut |_| Ok(()))
            .map_err(|error| {
                let agreed = error.is_agreed();
                // A process that ends takes its connections with it.
                drop(engine);
                (agreed, error.to_string())
            })
            .map(drop)
    });
    let found = errors.iter().filter_map(|error| error.as_ref().err());
    let mut own = found.filter(|(_, text)| text.contains("step 2: the loss of the share that rank"));
    assert!(own.next().is_some_and(|(agreed, _)| !agreed) && own.next().is_none(), "{errors:?}");
}

#[test]
fn what_cannot_be_served_is_refused() {
    let refused = |row: &Row| on_mesh(&row.mesh(), |groups| row.engine(groups).err().unwrap());
    for row in [
        Row { dp: 2, strategy: waiting(2), ..Row::default() },
        Row { dp: 3, strategy: waiting(1), zero: Zero { stage: 1, ..Zero::default() }, ..Row::default() },
        Row { dp: 2, pp: 2, strategy: waiting(1), ..Row::default() },
    ] {
        for error in refused(&row) {
            assert!(matches!(&error, Error::Model(why) if why.contains("are servers")), "{error}");
        }
    }
    let row = Row { dp: 2, strategy: waiting(1), ..Row::default() };
    on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        let why = engine.round(&|_| RATE, &mut |_| Ok(Vec::new()), &mut |_| Ok(())).unwrap_err().to_string();
        assert!(why.contains("has no rounds"), "{why}");
        assert_eq!((engine.is_server(), engine.workers()), (groups.world().rank() == 1, 1));
    });
}
