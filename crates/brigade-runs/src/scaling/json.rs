//! The scaling report as JSON.

use serde_json::{Value, json};

use super::compared::{Point, Scaling, ScalingKind};
use super::diagnosis::of_few_steps;

impl Scaling {
    /// What its text says, for programs. Times are in seconds, and what is not known is null.
    pub fn json(&self) -> Value {
        let explained = self.points.get(self.explained);
        let law = self.law.map(|law| {
            let name = match self.kind {
                ScalingKind::Strong => "amdahl",
                ScalingKind::Weak | ScalingKind::Mixed => "gustafson",
            };
            json!({ "name": name, "serial": law.serial, "error": law.error })
        });
        let communication = self.communication.map(
            |model| json!({ "seconds_per_message": model.latency, "bytes_per_second": model.bandwidth }),
        );
        json!({
            "kind": self.kind,
            "unit": self.unit,
            "runs": self.points.iter().map(of_run).collect::<Vec<_>>(),
            "law": law,
            "communication": communication,
            "explained": explained.map(|point| &point.name),
            "gap": self.gap,
            "findings": self.findings,
            "not_told_apart": explained.and_then(|point| point.profile.not_told_apart()),
            "too_few_steps": explained.and_then(|point| of_few_steps(&point.name, &point.profile)),
        })
    }
}

fn of_run(point: &Point) -> Value {
    let Point { name, profile, speed_up, efficiency, note, .. } = point;
    json!({
        "run": name,
        "ranks": profile.ranks,
        "targets_per_second": profile.rate(),
        "step_seconds": profile.step,
        "exposed_communication_seconds": profile.communication,
        "hidden_communication_seconds": profile.hidden,
        "speed_up": speed_up,
        "efficiency": efficiency,
        "note": note,
    })
}
