//! What a namespace's quotas leave for a job, as `kubectl get resourcequota -o json` prints them.
//!
//! Kubernetes checks them when pods are made, which a controller does after the job was accepted.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Kubernetes;
use super::pod::GPU;
use crate::job::Job;
use crate::systems::Lacking;

/// Quantities by their names.
type Amounts = BTreeMap<String, String>;

#[derive(Debug, Deserialize)]
struct List {
    items: Vec<Quota>,
}

#[derive(Debug, Deserialize)]
struct Quota {
    metadata: Name,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
struct Name {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    hard: Amounts,
    scopes: Vec<String>,
    scope_selector: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    used: Amounts,
}

/// What each pod of a job asks for.
struct Request<'a> {
    /// Its names in quotas.
    names: Vec<String>,
    /// The option that says how much.
    option: &'static str,
    /// How much, if it is said.
    amount: Option<&'a str>,
}

/// What does not fit into these quotas.
pub fn over(system: &Kubernetes, job: &Job, printed: &str) -> Lacking {
    let mut lacking = Lacking::default();
    match serde_json::from_str::<List>(printed) {
        Ok(list) => list.items.iter().for_each(|quota| quota.check(system, job, &mut lacking)),
        Err(error) => lacking.unknown.push(format!("the quotas of the namespace: kubectl's answer: {error}")),
    }
    lacking
}

/// What the pods ask for, of what quotas may limit.
fn requests<'a>(system: &'a Kubernetes, gpus: Option<&'a str>) -> Vec<Request<'a>> {
    let request = |names: &[&str], option, amount| Request {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        option,
        amount,
    };
    let mut all = vec![
        request(&["pods", "count/pods"], "--nodes", Some("1")),
        request(&["requests.cpu", "cpu", "limits.cpu"], "--cpus", system.cpus.as_deref()),
        request(&["requests.memory", "memory", "limits.memory"], "--memory", system.memory.as_deref()),
    ];
    all.extend(gpus.map(|gpus| request(&[&format!("requests.{GPU}")], "--gpus", Some(gpus))));
    all.extend(
        system
            .resources
            .iter()
            .map(|(name, amount)| request(&[&format!("requests.{name}"), name], "--resource", Some(amount))),
    );
    all
}

impl Quota {
    fn check(&self, system: &Kubernetes, job: &Job, lacking: &mut Lacking) {
        let name = &self.metadata.name;
        let gpus = (job.gpus > 0).then(|| job.gpus.to_string());
        let requests = requests(system, gpus.as_deref());
        let limited = requests.iter().flat_map(|request| {
            request.names.iter().filter_map(move |name| Some((request, name, self.spec.hard.get(name)?)))
        });
        let limited: Vec<_> = limited.collect();
        if !limited.is_empty() && (!self.spec.scopes.is_empty() || self.spec.scope_selector.is_some()) {
            lacking.unknown.push(format!("resourcequota/{name}, which applies to some pods only"));
            return;
        }
        for (Request { option, amount, .. }, limit, hard) in limited {
            let Some(amount) = amount else {
                lacking.unknown.push(format!(
                    "whether a LimitRange says how much of {limit} a pod gets: resourcequota/{name} limits it, so give {option} where there is none"
                ));
                continue;
            };
            let used = self.status.used.get(limit).map_or("0", String::as_str);
            let nodes = job.nodes as u128;
            let needed = thousandths(amount).and_then(|each| each.checked_mul(nodes));
            let (Some(needed), Some(all), Some(taken)) = (needed, thousandths(hard), thousandths(used))
            else {
                lacking.unknown.push(format!(
                    "resourcequota/{name}: {used} of {hard} {limit} are used, of which the job needs {nodes} x {amount}"
                ));
                continue;
            };
            let said = format!(
                "resourcequota/{name} allows {hard} of {limit}, of which {used} is used; the job needs {nodes} x {amount} ({option})"
            );
            match () {
                () if needed <= all.saturating_sub(taken) => {}
                // A queue makes the pods when others have ended.
                () if needed <= all && system.queue.is_some() => {
                    lacking.unknown.push(format!("when there is room: {said}"));
                }
                () => lacking.missing.push(said),
            }
        }
    }
}

/// A quantity of Kubernetes in thousandths, rounded up.
fn thousandths(text: &str) -> Option<u128> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{part}").parse().ok()?;
    let ten = |power: u32| 10_u128.checked_pow(power);
    let (times, over) = match unit {
        "n" => (1, ten(6)?),
        "u" => (1, ten(3)?),
        "m" => (1, 1),
        "" => (ten(3)?, 1),
        _ => match ["k", "M", "G", "T", "P", "E"].iter().position(|known| *known == unit) {
            Some(at) => (ten(3 * (u32::try_from(at).ok()? + 2))?, 1),
            None => match ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].iter().position(|known| *known == unit) {
                Some(at) => (1000 << (10 * (at + 1)), 1),
                None => {
                    let power: i32 = unit.strip_prefix(['e', 'E'])?.parse().ok()?;
                    let factor = ten(power.unsigned_abs())?;
                    if power < 0 { (ten(3)?, factor) } else { (factor.checked_mul(1000)?, 1) }
                }
            },
        },
    };
    let over = ten(u32::try_from(part.len()).ok()?)?.checked_mul(over)?;
    Some(digits.checked_mul(times)?.div_ceil(over))
}

#[cfg(test)]
mod tests {
    use super::thousandths;

    #[test]
    fn quantities() {
        for (text, thousand) in [
            ("0", 0),
            ("8", 8000),
            ("7.5", 7500),
            ("7500m", 7500),
            ("0.0001", 1),
            ("100n", 1),
            ("2k", 2_000_000),
            ("1E", 10_u128.pow(21)),
            ("1e3", 1_000_000),
            ("1E3", 1_000_000),
            ("15e-1", 1500),
            ("1.5Gi", 1000 * 3 * (1 << 29)),
            ("1Ei", 1000 << 60),
        ] {
            assert_eq!(thousandths(text), Some(thousand), "{text}");
        }
        for text in ["", "m", "-1", "1.2.3", "8 Gi", "1e", "1e999", "much"] {
            assert_eq!(thousandths(text), None, "{text}");
        }
    }
}
