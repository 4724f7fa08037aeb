//! Whether all ranks train the same model in the same way.

use brigade_core::Blocks;
use brigade_report::counted;

use crate::run::Session;
use crate::settings::RunPlan;
use crate::training_setup::OwnUpdate;
use crate::world::check_same;

impl Session {
    /// Checks that all ranks have made the same model, and bring the same optimizer, groups and learning rates, before they exchange anything of
    /// it. What functions compute, such as a block's forward, is not compared.
    ///
    /// # Errors
    /// On every rank, with the first thing that differs; or if a rank failed.
    pub(super) fn check_same_model(
        &self,
        name: &str,
        plan: &RunPlan,
        blocks: &Blocks,
        update: &OwnUpdate,
        total_steps: u64,
    ) -> anyhow::Result<()> {
        if self.world_size() == 1 {
            return Ok(());
        }
        let mut lines = blocks.describe();
        for group in &plan.engine.groups {
            let kind = if group.frozen {
                "frozen".to_owned()
            } else {
                format!("learning rate x {}", group.learning_rate_factor)
            };
            lines.push(format!("group {}: {kind}, weight decay {:?}", group.pattern, group.weight_decay));
        }
        let trial = plan.optimizer.trial(&brigade_cpu::device())?;
        lines.push(format!("an optimizer that makes {trial:?} of the same values"));
        for step in [0, 1, total_steps / 2, total_steps.saturating_sub(1)] {
            if let Some(factor) = update.learning_rate_factor(step) {
                lines.push(format!("learning rate x {factor} after {}", counted(step as usize, "step")));
            }
        }
        check_same(self.group(), name, &lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    //! Ranks that bring different models, optimizers, learning rates or metrics.

    use burn::optim::{SgdConfig, momentum::MomentumConfig};

    use crate::run::StartFrom;
    use crate::settings::OptimizerGroup;
    use crate::test_model::{Layers, layers};
    use crate::train::tests::fixture::*;
    use crate::training_setup::Training;

    type Own = Training<Rows, Rows, Rows>;

    /// Why a run ends whose last rank brings something else.
    fn refused(mesh: Mesh, brings: &(dyn Fn(bool) -> (Layers, Own) + Sync)) -> String {
        let folder = tempfile::tempdir().unwrap();
        let earlier = folder.path().join("model.safetensors");
        std::fs::write(&earlier, "of an earlier run").unwrap();
        let ended = on_mesh(folder.path(), &settings(2), mesh, StartFrom::Scratch, |session, _| {
            let (model, training) = brings(session.rank() + 1 == session.world_size());
            session.train(model, training).map(drop)
        });
        assert_eq!(std::fs::read_to_string(earlier).unwrap(), "of an earlier run");
        format!("{:#}", ended.unwrap_err())
    }

    #[test]
    fn ranks_that_make_different_models_end_with_the_first_difference() {
        let cases = [
            (
                WIDTH + 1,
                &["0", "1", "2", "3"][..],
                "a different model from rank 0; on rank 1 `block 0 with a cost of 56`, on rank 0 `block 0 with a cost of 42`",
            ),
            (
                WIDTH,
                &["0", "1", "b", "3"],
                "on rank 1 `block b with a cost of 42`, on rank 0 `block 2 with a cost of 42`",
            ),
            (WIDTH, &["0", "1", "2"], "on rank 0 `block 3 with a cost of 42`"),
            (WIDTH, &["0", "1", "2", "3", "4"], "on rank 1 `block 4 with a cost of 42`"),
        ];
        for mesh in [(1, 2, 0), (1, 2, 3), (2, 1, 0)] {
            for (width, names, expected) in cases {
                let own = |last| (if last { layers(width, names) } else { model() }, training());
                let error = refused(mesh, &own);
                assert!(error.contains(expected), "{mesh:?}: {error}");
            }
        }
    }

    #[test]
    fn so_do_ranks_that_train_it_in_different_ways() {
        let sgd = |momentum| {
            let momentum = MomentumConfig::new().with_momentum(momentum);
            training().optimizer(SgdConfig::new().with_momentum(Some(momentum)).build())
        };
        let group = |rate| training().group(OptimizerGroup::matching("1.*").learning_rate(rate));
        let rates = |second: f64| training().learning_rate(move |step| if step == 1 { second } else { 1.0 });
        let metric = |name: &str| training().derived_metric(name, |_| 0.0);
        let cases: [(&(dyn Fn(bool) -> Own + Sync), &str); 4] = [
            (
                &|last| sgd(if last { 0.8 } else { 0.9 }),
                "a different model from rank 0; on rank 1 `an optimizer that makes [",
            ),
            (&|last| group(if last { 0.1 } else { 0.2 }), "on rank 1 `group 1.*: learning rate x "),
            (
                &|last| rates(if last { 0.5 } else { 1.0 }),
                "on rank 1 `learning rate x 0.5 after 1 step`, on rank 0 `learning rate x 1 after 1 step`",
            ),
            (
                &|last| metric(if last { "a" } else { "b" }),
                "rank 1 runs with different metrics from rank 0; on rank 1 `a`, on rank 0 `b`",
            ),
        ];
        for (brings, expected) in cases {
            let error = refused((1, 2, 0), &|last| (model(), brings(last)));
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_further_model_is_compared_too() {
        let folder = tempfile::tempdir().unwrap();
        let added = on_mesh(folder.path(), &settings(2), (1, 2, 0), StartFrom::Scratch, |session, _| {
            let mut trainer = session.prepare(model(), training())?;
            let names: &[&str] = if session.rank() == 1 { &["a"] } else { &["b"] };
            trainer.add_model("critic", layers(WIDTH, names), Training::without_data()).map(drop)
        });
        let error = format!("{:#}", added.unwrap_err());
        assert!(
            error
                .contains("rank 1 runs with a different model `critic` from rank 0; on rank 1 `block a with"),
            "{error}"
        );
    }
}
