//! Runs with an optimizer, groups, a learning rate and a gradient hook of the program's own, in the loop and over resumes.

use std::path::Path;

use brigade_core::{
    Batch, DataParallel, OptimizerFactory, ReducedUnit, Reduction, Strategy, Synchronous, Update,
};
use burn::optim::{SgdConfig, momentum::MomentumConfig};

use super::fixture::{MESHES, Mesh, Rows, metrics, model, on_mesh, settings, training, weights};
use crate::memory::Sampled;
use crate::run::StartFrom;
use crate::settings::{OptimizerGroup, Settings};
use crate::training_setup::Training;

/// Trains up to a step, with a factor of the learning rate for each; the program has two groups, and so have the settings, if any.
fn train(
    out: &Path,
    start_from: StartFrom,
    mesh: Mesh,
    steps: u64,
    factor: impl Fn(u64) -> f64 + Copy + Send + Sync + 'static,
    groups: &[OptimizerGroup],
) -> anyhow::Result<()> {
    let mut settings = settings(steps);
    settings.checkpoint.every = 1;
    settings.optimizer.learning_rate = 0.1;
    settings.optimizer.groups = groups.to_vec();
    on_mesh(out, &settings, mesh, start_from, |session, _| {
        let nesterov = MomentumConfig::new().with_nesterov(true);
        let training = training()
            .optimizer(SgdConfig::new().with_momentum(Some(nesterov)).build())
            .group(OptimizerGroup::matching("1.*").learning_rate(0.05))
            .group(OptimizerGroup::matching("*.bias").frozen())
            .learning_rate(factor)
            .on_gradient(|_, gradient| gradient.clamp(-0.1, 0.1));
        session.train(model(), training).map(drop)
    })
}

fn half_as_much(step: u64) -> f64 {
    0.5f64.powi((step / 2) as i32)
}

#[test]
fn what_a_program_brings_holds_over_resumes_on_other_meshes() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    train(&whole, StartFrom::Scratch, (1, 1, 0), 6, half_as_much, &[]).unwrap();
    train(&parts, StartFrom::Scratch, (1, 2, 3), 2, half_as_much, &[]).unwrap();
    train(&parts, StartFrom::Checkpoint, (2, 1, 0), 3, half_as_much, &[]).unwrap();
    train(&parts, StartFrom::Checkpoint, (2, 2, 2), 6, half_as_much, &[]).unwrap();
    assert!(weights(&parts) == weights(&whole), "the files of weights have the same bytes");
    for out in [&whole, &parts] {
        let rates: Vec<f64> = metrics(out).iter().map(|record| record.learning_rate).collect();
        assert_eq!(rates, [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]);
    }
}

#[test]
fn groups_of_the_settings_take_the_place_of_the_programs() {
    let folder = tempfile::tempdir().unwrap();
    let trained = |name: &str, groups: &[OptimizerGroup]| {
        let out = folder.path().join(name);
        train(&out, StartFrom::Scratch, (1, 2, 0), 2, |_| 1.0, groups).unwrap();
        weights(&out)
    };
    let same =
        [OptimizerGroup::matching("1.*").learning_rate(0.05), OptimizerGroup::matching("*.bias").frozen()];
    let own = trained("own", &[]);
    assert!(own == trained("same", &same));
    assert!(own != trained("others", &same[..1]));
}

/// The plan of memory as well.
#[test]
fn a_dry_run_is_of_what_the_program_brings() {
    let out = tempfile::tempdir().unwrap();
    let mut settings = settings(2);
    settings.schedule.warmup_tokens = 3 * 4 * 16;
    on_mesh(out.path(), &settings, MESHES[0], StartFrom::Scratch, |session, _| {
        let training = || {
            Training::<Rows, Rows, Rows>::without_data()
                .optimizer(SgdConfig::new().build())
                .group(OptimizerGroup::matching("*.bias").frozen())
                .counted_in("tokens", 16)
        };
        let plan = training().plan(&session.plan, &session.settings)?;
        assert_eq!(plan.optimizer.state_bytes_per_value(&session.device()), 0);
        assert!(plan.engine.groups[0].frozen);
        assert_eq!(plan.lr_scheduler(100)?.warmup_steps, 3);
        assert_eq!(training().reported().unit, "tokens");
        let model = model();
        let samples = |_: usize| -> anyhow::Result<Batch<Rows, Rows>> { anyhow::bail!("there are none") };
        let planned = session.memory_plan(&plan, &Sampled { model: &model, samples: &samples })?;
        assert_eq!(planned.footprint.stages[0].memory.optimizer.peak, 0);
        let lines = session.update_lines(&plan, &training())?.join("; ");
        assert!(lines.contains("the optimizer is the program's own"), "{lines}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_function_that_gives_no_learning_rate_is_an_error_that_names_the_step() {
    let folder = tempfile::tempdir().unwrap();
    let factor = |step: u64| if step == 1 { f64::NAN } else { 1.0 };
    let error = train(folder.path(), StartFrom::Scratch, (1, 2, 0), 3, factor, &[]).unwrap_err();
    assert!(
        format!("{error:#}").contains("the learning rate = NaN (step 2, rank 0) is not possible"),
        "{error:#}"
    );
}

/// Plain gradient descent, whatever the settings say.
#[derive(Debug)]
struct PlainDescent {
    period: usize,
}

impl Strategy for PlainDescent {
    fn synchronizes(&self, step: u64) -> bool {
        step.is_multiple_of(self.period as u64)
    }
    fn period(&self) -> usize {
        self.period
    }
    fn reduction(&self, units: Vec<ReducedUnit>, data: DataParallel) -> Box<dyn Reduction> {
        Synchronous { every: self.period }.reduction(units, data)
    }
    fn update(&self, _: OptimizerFactory, data: DataParallel) -> Box<dyn Update> {
        Synchronous::default().update(SgdConfig::new().build().into(), data)
    }
}

#[test]
fn a_strategy_of_the_programs_own_takes_the_place_of_the_synchronous_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, mesh: Mesh, own: bool, change: &(dyn Fn(&mut Settings) + Sync)| {
        let mut settings = settings(4);
        change(&mut settings);
        let out = folder.path().join(name);
        let trained = on_mesh(&out, &settings, mesh, StartFrom::Scratch, |session, _| {
            let sgd = SgdConfig::new().build();
            let training = match own {
                true => training().strategy(PlainDescent { period: 1 }),
                false => training().optimizer(sgd),
            };
            session.train(model(), training).map(drop)
        });
        trained.map(|()| weights(&out)).map_err(|error| error.to_string())
    };
    let expected = run("plain", (1, 1, 0), false, &|_| {}).unwrap();
    for (number, mesh) in MESHES.into_iter().enumerate() {
        assert!(run(&format!("own-{number}"), mesh, true, &|_| {}).unwrap() == expected, "{mesh:?}");
    }
    let refused =
        |name: &str, change: &(dyn Fn(&mut Settings) + Sync)| run(name, (1, 1, 0), true, change).unwrap_err();
    let error = refused("every", &|settings| settings.train.sync_every = 2);
    assert!(
        error.contains("train.sync_every (--sync-every) = 2") && error.contains("a period of 1"),
        "{error}"
    );
}
