//! What a block and a schedule with backwards in two halves must hold to, and what a second half is given.

use brigade::core::plan::{Action, Pipeline, PipelineScheduleKind, Placement, StageTask};
use brigade::core::{
    Block, Chain, Engine, EngineSettings, Error, ForwardContext, Groups, OptimizerFactory,
    ParameterGradients, SplitForward,
};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Int, Tensor, activation::tanh, module::linear};

use super::schedules::Second::{After, AtOnce};
use super::schedules::in_halves;
use super::{Case, ROWS, WIDTH, batch};
use crate::mesh::same_bits;

#[test]
fn a_schedule_that_does_not_fit_is_refused() {
    let mut engine = Case::new(false, AtOnce).engine(Groups::single_rank());
    let mut refused = |pipeline: Pipeline| match engine.use_schedule(&pipeline) {
        Err(error @ Error::Setting { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let error = refused(Case::new(false, After(1)).pipeline(2, 4));
    assert_eq!(
        error,
        "the schedule given to Engine::use_schedule = stages: 2, chunks of blocks on each: 1, placed as Loop is not possible: the engine has stages: 1, chunks of blocks on each: 1, placed as Loop"
    );
    let error = refused(Pipeline::forward_only(Placement::Loop, 1, 1, 4));
    assert!(error.contains("runs them backward"), "{error}");
    let mut other = Case::new(false, After(1)).pipeline(1, 4);
    other.micro_batches = 3;
    let error = refused(other);
    assert!(error.contains("the schedule of pipeline rank 0 is wrong"), "{error}");
}

#[test]
fn a_list_with_a_half_missing_or_too_early_is_refused() {
    let task = StageTask { chunk: 0, micro_batch: 0 };
    let refused = |actions: Vec<Action>| {
        Pipeline::from_actions(Placement::Loop, 1, 1, 1, vec![actions]).unwrap_err().to_string()
    };
    let (forward, input, weights) =
        (Action::Forward(task), Action::BackwardInput(task), Action::BackwardWeights(task));
    let error = refused(vec![forward, weights, Action::Reduce { chunk: 0 }, input]);
    assert!(error.ends_with("backward-weights 0.0 comes before its first half"), "{error}");
    let error = refused(vec![forward, input]);
    assert!(error.ends_with("the second half of backward 0.0 is missing"), "{error}");
}

/// A block whose second half gives `path` the gradient of its weight, transposed.
#[derive(Module, Debug)]
struct Wrong {
    linear: Linear,
    path: String,
}

impl Block for Wrong {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward(x)
    }

    fn forward_split(&self, x: Tensor<2>, _: &ForwardContext<'_>) -> SplitForward<Tensor<2>> {
        let (input, path) = (x.clone().inner(), self.path.clone());
        SplitForward::new(x.matmul(self.linear.weight.val().detach()), move |gradient: Tensor<2>| {
            ParameterGradients::new().with(path, gradient.transpose().matmul(input))
        })
    }
}

#[test]
fn a_gradient_of_another_shape_or_name_is_refused() {
    for path in ["linear.weight", "weight"] {
        let linear = LinearConfig::new(WIDTH, 2).with_bias(false).init(&brigade_cpu::device().autodiff());
        let model = Chain::new().then("wrong", Wrong { linear, path: path.into() });
        let model = model.loss(|output: Tensor<2>, _: Tensor<2>| output.square().sum());
        let adamw = AdamWConfig::new().build();
        let optimizer = OptimizerFactory::new(adamw.clone(), adamw);
        let mut engine =
            Engine::new(model, 3, &optimizer, Groups::single_rank(), EngineSettings::default()).unwrap();
        let error = engine.step(vec![batch(0)], 1e-2).unwrap_err().to_string();
        let expected = format!(
            "block `wrong` gives a gradient [2, 6] for `{path}` in the second half of its backward; its parameters are {{\"linear.weight\": [6, 2]}}"
        );
        assert_eq!(error, expected);
    }
}

/// Several tensors between blocks: one is not used, one has no gradient.
#[derive(Module, Debug)]
struct Fork {
    linear: Linear,
    splits: bool,
}

impl Block for Fork {
    type Input = Tensor<2>;
    type Output = (Tensor<2>, Tensor<2>, Tensor<1, Int>);

    fn forward(&self, x: Tensor<2>) -> Self::Output {
        let y = self.linear.forward(x);
        (y.clone(), y.clone() * 2, Tensor::from_ints([3], &y.device()))
    }

    fn forward_split(&self, x: Tensor<2>, _: &ForwardContext<'_>) -> SplitForward<Self::Output> {
        if !self.splits {
            return self.forward(x).into();
        }
        let input = x.clone().inner();
        let y = linear(x, self.linear.weight.val().detach(), None);
        let number = Tensor::from_ints([3], &y.device());
        SplitForward::new((y.clone(), y * 2, number), |(gradient, unused, number): Self::Output| {
            assert_eq!(unused.clone().abs().sum().into_scalar::<f32>(), 0.0);
            assert_eq!(unused.dims(), [ROWS, WIDTH]);
            assert_eq!(number.into_scalar::<i64>(), 3);
            ParameterGradients::new().with("linear.weight", input.transpose().matmul(gradient))
        })
    }
}

#[derive(Module, Debug)]
struct Join {
    linear: Linear,
}

impl Block for Join {
    type Input = (Tensor<2>, Tensor<2>, Tensor<1, Int>);
    type Output = Tensor<2>;

    fn forward(&self, (x, _, number): Self::Input) -> Tensor<2> {
        tanh(self.linear.forward(x)) * number.float().reshape([1, 1])
    }
}

#[test]
fn a_second_half_gets_zeros_and_integers_too() {
    let trained = |splits: bool| {
        let device = brigade_cpu::device().autodiff();
        let linear = || LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(&device);
        let model = Chain::new()
            .then("fork", Fork { linear: linear(), splits })
            .then("join", Join { linear: linear() })
            .loss(|output: Tensor<2>, target: Tensor<2>| (output - target).square().sum());
        let adamw = AdamWConfig::new().with_epsilon(1e-8).build();
        let optimizer = OptimizerFactory::new(adamw.clone(), adamw);
        let mut engine =
            Engine::new(model, 3, &optimizer, Groups::single_rank(), EngineSettings::default()).unwrap();
        let plain = Pipeline::new(PipelineScheduleKind::OneFOneB, 1, 1, 2).unwrap();
        engine.use_schedule(&in_halves(&plain, After(1))).unwrap();
        for _ in 0..2 {
            engine.step(vec![batch(0), batch(1)], 1e-2).unwrap();
        }
        engine.tensors(0).unwrap()
    };
    same_bits(&trained(true), &trained(false), "weights");
}
