//! Why pods wait, as `kubectl get pods -o json` says it.

use serde::Deserialize;

/// How much of a message is shown.
const SHOWN: usize = 200;

#[derive(Debug, Deserialize)]
struct Pods {
    #[serde(default)]
    items: Vec<Pod>,
}

#[derive(Debug, Deserialize)]
struct Pod {
    metadata: Name,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
struct Name {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    conditions: Vec<Condition>,
    container_statuses: Vec<Container>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    r#type: String,
    status: String,
    #[serde(flatten)]
    why: Why,
}

#[derive(Debug, Deserialize)]
struct Container {
    #[serde(default)]
    state: State,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct State {
    waiting: Option<Why>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Why {
    reason: String,
    message: String,
}

impl Pod {
    fn why(&self) -> Option<&Why> {
        let Status { conditions, container_statuses } = &self.status;
        let unscheduled = |found: &&Condition| found.r#type == "PodScheduled" && found.status == "False";
        let waiting = || container_statuses.iter().find_map(|container| container.state.waiting.as_ref());
        conditions.iter().find(unscheduled).map(|condition| &condition.why).or_else(waiting)
    }
}

/// Of pods that wait, how many, and why the first does. Nothing where none waits, or the text is none of `kubectl`'s.
pub fn reason(json: &str) -> Option<String> {
    let mut pods = serde_json::from_str::<Pods>(json).ok()?.items;
    // The same one each time, whatever the cluster's order.
    pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let (pod, why) = pods.iter().find_map(|pod| Some((pod, pod.why()?)))?;
    let others = match pods.len() - 1 {
        0 => String::new(),
        others => format!(", and {others} more"),
    };
    let message: String = why.message.split_whitespace().collect::<Vec<_>>().join(" ");
    let message = match message.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message,
    };
    let message = if message.is_empty() { message } else { format!(": {message}") };
    Some(format!("{}{others}: {}{message}", pod.metadata.name, why.reason))
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn the_first_pod_says_why_it_waits() {
        let unscheduled = r#"{ "items": [
            { "metadata": { "name": "a-1" }, "status": { "phase": "Pending" } },
            { "metadata": { "name": "a-0" }, "status": { "phase": "Pending", "conditions": [
                { "type": "Ready", "status": "False" },
                { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are\n available" }
            ] } } ] }"#;
        assert_eq!(reason(unscheduled).unwrap(), "a-0, and 1 more: Unschedulable: 0/3 nodes are available");
        let image = r#"{ "items": [ { "metadata": { "name": "a-0" }, "status": {
            "conditions": [ { "type": "PodScheduled", "status": "True" } ],
            "containerStatuses": [ { "name": "node", "state": { "waiting": { "reason": "ImagePullBackOff", "message": "Back-off pulling" } } } ]
        } } ] }"#;
        assert_eq!(reason(image).unwrap(), "a-0: ImagePullBackOff: Back-off pulling");
        let creating = image
            .replace(r#", "message": "Back-off pulling""#, "")
            .replace("ImagePullBackOff", "ContainerCreating");
        assert_eq!(reason(&creating).unwrap(), "a-0: ContainerCreating");
        for none in ["", "{}", r#"{ "items": [] }"#, r#"{ "items": [ { "metadata": { "name": "a-0" } } ] }"#]
        {
            assert_eq!(reason(none), None, "{none}");
        }
    }
}
