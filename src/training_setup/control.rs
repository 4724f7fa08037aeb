//! What hooks answer, and how a run calls them.

use brigade_core::StepReport;

use super::ValidationReport;

/// What a run does after a hook.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Control {
    /// Train on.
    #[default]
    Continue,
    /// End the run after this step, as if it were the last one: validate, save, and write the weights. When such a run is
    /// resumed, it has nothing left to do.
    Stop,
    /// Train on, and keep the weights of this step as the best so far: a checkpoint is saved, and kept until a better one is
    /// saved.
    SaveBest,
}

/// What a hook may return: a [`Control`], nothing (which is [`Control::Continue`]), or a result of either, whose error ends the
/// run on all ranks.
pub trait HookAnswer {
    /// The answer.
    ///
    /// # Errors
    /// The hook's.
    fn control(self) -> anyhow::Result<Control>;
}

impl HookAnswer for Control {
    fn control(self) -> anyhow::Result<Control> {
        Ok(self)
    }
}

impl HookAnswer for () {
    fn control(self) -> anyhow::Result<Control> {
        Ok(Control::Continue)
    }
}

impl<A: HookAnswer> HookAnswer for anyhow::Result<A> {
    fn control(self) -> anyhow::Result<Control> {
        self?.control()
    }
}

type Hook<E> = Box<dyn FnMut(&E) -> anyhow::Result<Control>>;

/// The hooks of a run, in the order in which they were added. Every rank has them; rank 0 calls them.
#[derive(Default)]
pub(crate) struct Hooks {
    on_step: Vec<Hook<StepReport>>,
    on_validation: Vec<Hook<ValidationReport>>,
}

fn erased<E, A: HookAnswer>(mut hook: impl FnMut(&E) -> A + 'static) -> Hook<E> {
    Box::new(move |event| hook(event).control())
}

impl Hooks {
    pub(super) fn add_on_step<A: HookAnswer>(&mut self, hook: impl FnMut(&StepReport) -> A + 'static) {
        self.on_step.push(erased(hook));
    }

    pub(super) fn add_on_validation<A: HookAnswer>(
        &mut self,
        hook: impl FnMut(&ValidationReport) -> A + 'static,
    ) {
        self.on_validation.push(erased(hook));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.on_step.is_empty() && self.on_validation.is_empty()
    }

    /// Whether there are hooks that answer to validations.
    pub(crate) fn answers_validations(&self) -> bool {
        !self.on_validation.is_empty()
    }

    /// What the hooks answer to a step.
    pub(crate) fn step(&mut self, report: &StepReport) -> HookAnswers {
        HookAnswers::of(&mut self.on_step, report)
    }

    /// What the hooks answer to a validation.
    pub(crate) fn validation(&mut self, report: &ValidationReport) -> HookAnswers {
        HookAnswers::of(&mut self.on_validation, report)
    }
}

/// The combined answers of the hooks of one event. All ranks use rank 0's answers, which are sent as a
/// number.
#[derive(Debug, Default)]
pub(crate) struct HookAnswers {
    pub stop: bool,
    pub save_best: bool,
    /// The error of a hook, which is only known on rank 0.
    pub error: Option<anyhow::Error>,
}

const STOP: u8 = 1;
const SAVE_BEST: u8 = 2;
const FAILED: u8 = 4;

impl HookAnswers {
    /// Calls each hook, up to the first that fails.
    fn of<E>(hooks: &mut [Hook<E>], event: &E) -> Self {
        let mut answers = Self::default();
        for hook in hooks {
            match hook(event) {
                Ok(Control::Continue) => {}
                Ok(Control::Stop) => answers.stop = true,
                Ok(Control::SaveBest) => answers.save_best = true,
                Err(error) => {
                    answers.error = Some(error);
                    break;
                }
            }
        }
        answers
    }

    /// As a number for the other ranks.
    pub(crate) fn to_number(&self) -> u8 {
        let flags = [(self.stop, STOP), (self.save_best, SAVE_BEST), (self.error.is_some(), FAILED)];
        flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum()
    }
}

/// Rank 0's answers, as every rank learns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AgreedAnswers {
    pub stop: bool,
    pub save_best: bool,
    pub failed: bool,
}

impl AgreedAnswers {
    pub(crate) fn from_number(number: u8) -> Self {
        let has = |flag: u8| number & flag != 0;
        Self { stop: has(STOP), save_best: has(SAVE_BEST), failed: has(FAILED) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_several_hooks_add_up_to_the_first_error() {
        let mut hooks: Vec<Hook<u32>> = vec![
            erased(|_: &u32| ()),
            erased(|step: &u32| if *step == 2 { Control::Stop } else { Control::Continue }),
            erased(|_: &u32| Control::SaveBest),
        ];
        let agreed = |hooks: &mut [Hook<u32>], step| {
            AgreedAnswers::from_number(HookAnswers::of(hooks, &step).to_number())
        };
        let saves = AgreedAnswers { stop: false, save_best: true, failed: false };
        assert_eq!(agreed(&mut hooks, 1), saves);
        assert_eq!(agreed(&mut hooks, 2), AgreedAnswers { stop: true, ..saves });
        hooks.insert(1, erased(|_: &u32| -> anyhow::Result<()> { anyhow::bail!("no") }));
        hooks.insert(2, erased(|_: &u32| -> anyhow::Result<Control> { unreachable!("after an error") }));
        assert_eq!(agreed(&mut hooks, 2), AgreedAnswers { stop: false, save_best: false, failed: true });
    }
}
