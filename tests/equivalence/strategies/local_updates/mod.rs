//! Workers that make updates of their own and synchronise in outer steps: local SGD and DiLoCo.

mod one_process;
mod same_bits;
mod skipped;
mod states;

use std::sync::Arc;

use brigade::core::{
    Fragments, LocalUpdates, NamedTensor, OuterDtype, OuterOptimizer, StepReport, Strategy, Zero,
};
use brigade::kernels::SgdConfig;

use crate::mesh::on_mesh;
use crate::row::Row;

const WORKERS: usize = 2;

/// Of a worker in a step.
const MICRO_BATCHES: usize = 4;

const OUTER_RATE: f32 = 0.7;

const MOMENTUM: f32 = 0.9;

pub fn averaging(inner_steps: u64) -> Arc<dyn Strategy> {
    Arc::new(LocalUpdates { inner_steps, outer: None, fragments: None })
}

pub fn diloco(inner_steps: u64, dtype: OuterDtype) -> Arc<dyn Strategy> {
    streaming(inner_steps, dtype, None)
}

/// With outer steps of one fragment after the other, if there are any.
pub fn streaming(inner_steps: u64, dtype: OuterDtype, fragments: Option<Fragments>) -> Arc<dyn Strategy> {
    let sgd = SgdConfig { momentum: Some(MOMENTUM), dampening: 0.0, nesterov: true, weight_decay: None };
    let learning_rate = f64::from(OUTER_RATE);
    let outer = OuterOptimizer { optimizer: sgd.build().into(), learning_rate, dtype };
    Arc::new(LocalUpdates { inner_steps, outer: Some(outer), fragments })
}

/// Workers with every mesh inside.
pub fn rows(base: &Row) -> Vec<Row> {
    let meshes = [(1, 1, 0), (1, 2, 0), (1, 2, 1), (2, 1, 0), (2, 2, 3), (1, 4, 2)];
    let row = |(pp, dp, stage)| Row {
        workers: WORKERS,
        pp,
        dp,
        micro_batches: MICRO_BATCHES / dp,
        zero: Zero { stage, ..Zero::default() },
        ..base.clone()
    };
    meshes.into_iter().map(row).collect()
}

/// Runs a row on its mesh; gives each rank's reports and weights.
pub fn run(row: &Row) -> Vec<(Vec<StepReport>, Vec<NamedTensor>)> {
    on_mesh(&row.mesh(), |groups| {
        let (rank, ranks) = (groups.world().rank(), groups.world().size());
        let mut engine = row.engine(groups.clone()).unwrap();
        let reports = (0..row.steps).filter_map(|step| row.step(&mut engine, step, &groups)).collect();
        let mut weights = Vec::new();
        for root in 0..ranks {
            let tensors = engine.tensors(root).unwrap();
            if root == rank {
                weights = tensors;
            }
        }
        (reports, weights)
    })
}
