//! A small net learns from a large one, while that is still learning: two models with an optimizer each.
//! `burn.rs` does it with plain Burn, `brigade.rs` is the same program moved to Brigade.

mod data;
mod model;

use brigade::{Chain, Training, launch, samples};
use burn::tensor::activation::softmax;

use data::{POINTS, spirals};
use model::{Net, loss};

const TEACHER: usize = 32;
const STUDENT: usize = 8;
const DEFAULTS: &str = "
train = { steps = 400, global_batch_size = 64, micro_batch_size = 16, gradient_clipping = 0 }
optimizer = { learning_rate = 1e-2, weight_decay = 0, beta2 = 0.999, epsilon = 1e-5 }
schedule.name = 'constant'";

fn main() -> std::process::ExitCode {
    launch(DEFAULTS, |session| {
        let chain = |net: Net| Chain::new().then_each("layers", net.layers, |m, x| m.forward(x)).loss(loss);
        let data = Training::on(samples(POINTS, spirals)).on_step(|step| report(step.step, step.loss));
        let mut teacher = session.prepare(chain(Net::new(TEACHER, &session.device())), data)?;
        let student = chain(Net::new(STUDENT, &session.device()));
        let mut student = teacher.add_model("student", student, Training::without_data())?;
        while let Some(mut batches) = teacher.next_batches()? {
            teacher.step(batches.clone())?;
            for batch in &mut batches {
                batch.target = softmax(teacher.predict(batch.input.clone())?, 1);
            }
            student.step(batches)?.inspect(|step| teacher.log("student_loss", step.loss));
        }
        teacher.finish().map(drop)
    })
}

fn report(step: u64, loss: f64) {
    if step.is_multiple_of(50) {
        println!("step {step}: the teacher's loss is {loss:.3}");
    }
}
