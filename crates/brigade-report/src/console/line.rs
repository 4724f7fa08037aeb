//! A step as a line of text.

use std::time::Duration;

use indicatif::{HumanCount, HumanDuration, HumanFloatCount};

use super::counted::number;
use crate::record::{StepRecord, TARGET_COUNTS};

/// The columns of a step as plain text: step, loss, named metrics, grad_norm, lr, `unit`s per second, TFLOP/s and MFU of a rank where
/// known, the most memory of a rank (that of its device where it has its own, with the share of it), data-wait, the time `left` until the last step where
/// that is known, and the validation's loss and named metrics where measured.
pub fn line(record: &StepRecord, total_steps: u64, unit: &str, left: Option<Duration>) -> String {
    let StepRecord { step, loss, grad_norm, learning_rate, tokens_per_second, .. } = record;
    let width = total_steps.to_string().len();
    let mut text = format!("step {step:>width$}/{total_steps}  loss {}", number(*loss));
    for (name, value) in &record.metrics {
        text += &format!("  {name} {}", metric(*value));
    }
    let rate = HumanCount(tokens_per_second.round() as u64);
    text += &format!("  grad_norm {}  lr {learning_rate:.2e}  {unit}/s {rate}", number(*grad_norm));
    if let Some(tflops) = record.tflops {
        text += &format!("  TFLOP/s {tflops:.3}");
    }
    if let Some(mfu) = record.mfu_percent {
        text += &format!("  MFU {mfu:.1}%");
    }
    // One unit for all lines, so that they can be compared.
    text += &format!("  memory {:.2}GiB", record.peak_memory_gib());
    if let Some(part) = record.device_memory.and_then(|memory| memory.peak_percent()) {
        text += &format!("({part:.1}%)");
    }
    text += &format!("  data-wait {:.1}%", record.data_wait_percent());
    if let Some(left) = left {
        text += &format!("  eta {:#}", HumanDuration(left));
    }
    if let Some(loss) = record.validation_loss {
        text += &format!("  validation_loss {}", number(loss));
    }
    for (name, value) in &record.validation_metrics {
        text += &format!("  validation_{name} {}", metric(*value));
    }
    text
}

/// What a progress bar says of a step.
pub fn bar_message(record: &StepRecord, unit: &str) -> String {
    let rate = HumanCount(record.tokens_per_second.round() as u64);
    let StepRecord { loss, learning_rate, metrics, .. } = record;
    let named = metrics.iter().filter(|(name, _)| !TARGET_COUNTS.contains(&name.as_str()));
    let named: String = named.map(|(name, value)| format!(" {name} {}", metric(*value))).collect();
    format!(
        "loss {}{named} lr {learning_rate:.2e} {rate} {unit}/s data-wait {:.1}%",
        number(*loss),
        record.data_wait_percent()
    )
}

/// With four decimals at most; where these would show nothing of a number, as a power of ten.
fn metric(value: f64) -> String {
    let shown = number(value);
    if shown.contains('e') && value.abs() < 1.0 { shown } else { HumanFloatCount(value).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::DeviceMemory;

    fn record() -> StepRecord {
        StepRecord {
            step: 7,
            loss: 4.123456,
            grad_norm: 0.5,
            learning_rate: 3e-4,
            tokens_per_second: 12345.4,
            step_seconds: 2.0,
            data_wait_seconds: 0.004,
            peak_rss_bytes: 1 << 29,
            ..StepRecord::default()
        }
    }

    #[test]
    fn the_line_has_all_columns_in_order() {
        assert_eq!(
            line(&record(), 100, "tokens", None),
            "step   7/100  loss 4.1235  grad_norm 0.5000  lr 3.00e-4  tokens/s 12,345  memory 0.50GiB  data-wait 0.2%"
        );
        let rates = (Some(0.1234), Some(12.34));
        let measured =
            StepRecord { validation_loss: Some(4.0), tflops: rates.0, mfu_percent: rates.1, ..record() };
        let text = line(&measured, 100, "tokens", None);
        assert!(text.contains("12,345  TFLOP/s 0.123  MFU 12.3%  memory"), "{text}");
        assert!(text.ends_with("  validation_loss 4.0000"), "{text}");
        let text = line(&measured, 100, "tokens", Some(Duration::from_secs(200)));
        assert!(text.ends_with("  data-wait 0.2%  eta 3m  validation_loss 4.0000"), "{text}");
        let named = |metrics: [(&str, f64); 2]| {
            metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
        };
        let metrics = named([("accuracy", 0.25), ("valid_targets", 4096.0)]);
        let validation_metrics = named([("accuracy", 0.12345), ("valid_targets", 1e6)]);
        let text = line(&StepRecord { metrics, validation_metrics, ..measured }, 100, "samples", None);
        assert!(text.contains("  loss 4.1235  accuracy 0.25  valid_targets 4,096  grad_norm"), "{text}");
        let validated =
            "  validation_loss 4.0000  validation_accuracy 0.1235  validation_valid_targets 1,000,000";
        assert!(text.ends_with(validated), "{text}");
        assert!(text.contains("  samples/s 12,345  TFLOP/s"), "{text}");
        assert!(bar_message(&record(), "images").contains(" 12,345 images/s "));
        let metrics = named([("accuracy", 0.25), ("valid_targets", 4096.0)]);
        let text = bar_message(&StepRecord { metrics, ..record() }, "images");
        assert!(text.starts_with("loss 4.1235 accuracy 0.25 lr 3.00e-4 "), "{text}");
        let broken = StepRecord { loss: f64::NAN, tokens_per_second: f64::INFINITY, ..record() };
        assert!(line(&broken, 0, "tokens", None).contains("loss NaN"));
    }

    #[test]
    fn small_numbers_are_not_shown_as_none() {
        let metrics = [("drift".to_owned(), 2.5e-6), ("none".to_owned(), 0.0)].into_iter().collect();
        let small = StepRecord { loss: 1.25e-5, grad_norm: 0.00004, metrics, ..record() };
        let text = line(&small, 100, "tokens", None);
        assert!(text.contains("loss 1.2500e-5  drift 2.5000e-6  none 0  grad_norm 4.0000e-5"), "{text}");
        let text = bar_message(&small, "tokens");
        assert!(text.starts_with("loss 1.2500e-5 drift 2.5000e-6 none 0 lr"), "{text}");
    }

    #[test]
    fn the_memory_is_the_devices_where_there_is_one() {
        let mut memory =
            DeviceMemory { in_use: 0, reserved: 1 << 30, reserved_peak: 40 << 30, total: Some(80 << 30) };
        let shown =
            |memory| line(&StepRecord { device_memory: Some(memory), ..record() }, 100, "tokens", None);
        assert!(shown(memory).ends_with("  memory 40.00GiB(50.0%)  data-wait 0.2%"), "{}", shown(memory));
        memory.total = None;
        assert!(shown(memory).ends_with("  memory 40.00GiB  data-wait 0.2%"), "{}", shown(memory));
    }
}
