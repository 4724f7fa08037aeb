//! A small net learns from a large one, while that is still learning: two models with an optimizer each.
//! `burn.rs` does it with plain Burn, `brigade.rs` is the same program moved to Brigade.

mod data;
mod model;
#[path = "../same_bits/mod.rs"]
mod same_bits;

use burn::optim::{AdamWConfig, GradientsParams};
use burn::prelude::*;
use burn::tensor::activation::softmax;

use data::{POINTS, spirals};
use model::{Net, loss};
use same_bits::{Batches, PairwiseAccumulator, first_weights, first_weights_of, save, save_added};

const TEACHER: usize = 32;
const STUDENT: usize = 8;

fn main() -> anyhow::Result<()> {
    let device = Device::default().autodiff();
    let mut teacher = first_weights(Net::new(TEACHER, &device));
    let mut student = first_weights_of("student", Net::new(STUDENT, &device));
    let adamw = AdamWConfig::new().with_weight_decay(0.0);
    let (mut teachers, mut students) = (adamw.clone().init(), adamw.init());
    let batches = Batches::new(POINTS, 64, 16);
    for step in 1..=400 {
        let (mut teacher_sum, mut student_sum) = (PairwiseAccumulator::new(), PairwiseAccumulator::new());
        let mut total = 0.0;
        for numbers in batches.of_step(step) {
            let (points, wanted) = spirals(&numbers, &device);
            let loss = loss(forward(&teacher, points), wanted).div_scalar(64.0);
            total += loss.clone().into_scalar::<f64>();
            teacher_sum.accumulate(GradientsParams::from_grads(loss.backward(), &teacher));
        }
        let gradients = teacher_sum.grads(&teacher);
        teacher = teachers.step(1e-2, teacher, gradients);
        report(step, total);
        for numbers in batches.of_step(step) {
            let (points, _) = spirals(&numbers, &device);
            let opinion = softmax(forward(&teacher.valid(), points.clone().inner()), 1);
            let loss = loss(forward(&student, points), opinion).div_scalar(64.0);
            student_sum.accumulate(GradientsParams::from_grads(loss.backward(), &student));
        }
        let gradients = student_sum.grads(&student);
        student = students.step(1e-2, student, gradients);
    }
    save_added("student", student)?;
    save(teacher)
}

fn forward(net: &Net, points: Tensor<2>) -> Tensor<2> {
    net.layers.iter().fold(points, |x, layer| layer.forward(x))
}

fn report(step: u64, loss: f64) {
    if step.is_multiple_of(50) {
        println!("step {step}: the teacher's loss is {loss:.3}");
    }
}
