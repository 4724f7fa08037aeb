//! Runs on different numbers of ranks beside each other.

use brigade_report::CollectiveRecord;
use serde::Serialize;

use super::diagnosis::{Finding, diagnose};
use super::laws::{CommunicationModel, Law, amdahl, communication, gustafson};
use super::profile::Profile;
use crate::error::{Error, Result};
use crate::run::Run;

/// How far the targets of a step may differ for the problem to count as one of constant size.
const SAME_BATCH: f64 = 0.01;

/// Runs of one model on different numbers of ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaling {
    /// The runs, the smallest first, and the fastest of those of one size.
    pub points: Vec<Point>,
    /// Which of them the gap and the findings are of: the largest, and of several the fastest.
    pub explained: usize,
    /// How the batch changed.
    pub kind: ScalingKind,
    /// What targets are called.
    pub unit: String,
    /// The law that fits the kind of scaling; none for a batch that changed otherwise.
    pub law: Option<Law>,
    /// What communication costs; none where fewer than two runs waited for any, or most of it was hidden.
    pub communication: Option<CommunicationModel>,
    /// What the gap to linear scaling of the explained run is made of, the largest part first.
    pub gap: Vec<GapPart>,
    /// What makes it slow, the greatest gain first.
    pub findings: Vec<Finding>,
}

/// How the batch of a step changes on more ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScalingKind {
    /// It stays as large: Amdahl's law.
    Strong,
    /// It grows with the ranks: Gustafson's law.
    Weak,
    /// It changes otherwise, so that no law says what to expect.
    Mixed,
}

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Its name.
    pub name: String,
    /// Its usual step.
    pub profile: Profile,
    /// How many times as many targets per second as the smallest run.
    pub speed_up: f64,
    /// The same over how many times as many ranks.
    pub efficiency: f64,
    /// Messages and bytes that a rank sends in a step, if rings carry them.
    pub sent: (f64, f64),
    /// Which of its steps count, where not all do because they were in another mesh.
    pub note: Option<String>,
}

/// A part of the gap to linear scaling.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GapPart {
    /// What it is.
    pub name: String,
    /// Its share of the gap, in percent.
    pub percent: f64,
}

/// Compares runs of one model on different numbers of ranks.
///
/// # Errors
/// If there are fewer than two sizes, or the runs have nothing to compare.
pub fn scaling(runs: &[Run]) -> Result<Scaling> {
    let mut runs: Vec<&Run> = runs.iter().collect();
    runs.sort_by_key(|run| run.ranks());
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
        return Err(Error::OneSize { ranks: 0 });
    };
    runs.iter().try_for_each(|run| first.check_compares(run))?;
    if let Some(run) = runs.iter().find(|run| run.records_of_last_mesh().is_empty()) {
        return Err(Error::NoStepsYet { run: run.dir.clone() });
    }
    let sizes = |run: &Run| run.ranks().unwrap_or(1);
    if sizes(first) == sizes(last) {
        return Err(Error::OneSize { ranks: sizes(first) });
    }
    let mut profiled: Vec<(&Run, Profile)> = runs.into_iter().map(|run| (run, Profile::of(run))).collect();
    profiled.sort_by(|(_, a), (_, b)| a.ranks.cmp(&b.ranks).then(b.rate().total_cmp(&a.rate())));
    let (runs, profiles): (Vec<&Run>, Vec<Profile>) = profiled.into_iter().unzip();
    let explained = profiles.partition_point(|profile| profile.ranks < profiles[profiles.len() - 1].ranks);
    let smallest = &profiles[0];
    let point = |(run, profile): (&&Run, &Profile)| {
        let speed_up = profile.rate() / smallest.rate();
        let efficiency = speed_up * smallest.ranks as f64 / profile.ranks as f64;
        Point {
            name: run.name.clone(),
            profile: profile.clone(),
            speed_up,
            efficiency,
            sent: sent(run, profile),
            note: run.last_mesh_note(),
        }
    };
    let points: Vec<Point> = runs.iter().zip(&profiles).map(point).collect();
    let stays = |size: &dyn Fn(&Profile) -> f64| {
        profiles.iter().all(|profile| (size(profile) / size(smallest) - 1.0).abs() <= SAME_BATCH)
    };
    let kind = if stays(&|profile| profile.tokens) {
        ScalingKind::Strong
    } else if stays(&|profile| profile.tokens / profile.ranks as f64) {
        ScalingKind::Weak
    } else {
        ScalingKind::Mixed
    };
    let measured: Vec<(f64, f64)> = points
        .iter()
        .map(|point| (point.profile.ranks as f64 / smallest.ranks as f64, point.speed_up))
        .collect();
    let waits: Vec<(f64, f64, f64)> =
        points.iter().map(|point| (point.sent.0, point.sent.1, point.profile.communication)).collect();
    Ok(Scaling {
        law: match kind {
            ScalingKind::Strong => amdahl(&measured),
            ScalingKind::Weak => gustafson(&measured),
            ScalingKind::Mixed => None,
        },
        communication: if is_hidden(&profiles) { None } else { communication(&waits) },
        gap: gap(smallest, &profiles[explained]),
        findings: diagnose(runs[explained]),
        unit: runs[0].unit().to_owned(),
        explained,
        kind,
        points,
    })
}

/// Whether computing hid most of the communication of the runs, so that their waits do not show what it takes.
fn is_hidden(profiles: &[Profile]) -> bool {
    let hidden: f64 = profiles.iter().filter_map(|profile| profile.hidden).sum();
    hidden > profiles.iter().map(|profile| profile.communication).sum()
}

/// Messages and bytes of a rank: each collective as a ring of the ranks that take part, of as many messages as there are others, and an all-reduce as two. What stages send each
/// other is waited for as a part of the pipeline, and does not count.
fn sent(run: &Run, profile: &Profile) -> (f64, f64) {
    let Some(record) = run.records.last() else { return (0.0, 0.0) };
    let mesh = run.mesh();
    let axis = |name: &str| mesh.iter().find(|(axis, _)| axis == name).map_or(1, |(_, size)| (*size).max(1));
    let (replicas, all) = (axis("replicate"), profile.ranks);
    let (mut messages, mut bytes) = (0.0, 0);
    for (what, CollectiveRecord { calls, bytes: sent }) in &record.collectives {
        let (rings, ranks) = match what.as_str() {
            "send" => continue,
            "all_gather_scalars" | "barrier" => (1, all),
            "all_reduce" if replicas > 1 => (2, replicas),
            "all_reduce" => (2, all / axis("pp")),
            _ => (1, all / axis("pp") / replicas),
        };
        messages += *calls as f64 * rings as f64 * (ranks as f64 - 1.0).max(0.0);
        bytes += sent;
    }
    (messages, bytes as f64 / all as f64)
}

/// Where the time of a step went that it takes more than under linear scaling. What a part took on fewer ranks, scaled down, is no gap.
fn gap(smallest: &Profile, largest: &Profile) -> Vec<GapPart> {
    let linear =
        smallest.step * (largest.tokens / smallest.tokens) * (smallest.ranks as f64 / largest.ranks as f64);
    let whole = largest.step - linear;
    if whole <= 0.02 * largest.step {
        return Vec::new();
    }
    let computing = match largest.waits_in_compute {
        true => "computing, and waits for NCCL, which these numbers do not tell apart",
        false => "computing, which takes longer for the same work",
    };
    let (before, after) = (parts(smallest, computing), parts(largest, computing));
    let scale = linear / smallest.step;
    let mut gap: Vec<GapPart> = Vec::new();
    for (name, seconds) in after {
        let earlier = before.iter().find(|(other, _)| *other == name).map_or(0.0, |(_, seconds)| *seconds);
        let percent = 100.0 * (seconds - scale * earlier) / whole;
        if percent >= 1.0 {
            gap.push(GapPart { name, percent });
        }
    }
    // What one part explains, another may explain as well: ranks that are late, and the sums that wait for them.
    let all: f64 = gap.iter().map(|part| part.percent).sum();
    if all > 100.0 {
        gap.iter_mut().for_each(|part| part.percent *= 100.0 / all);
    }
    gap.sort_by(|a, b| b.percent.total_cmp(&a.percent));
    gap
}

/// The parts of a step, which add up to it about: on the rank that all wait for. `computing`: what the first is called.
fn parts(profile: &Profile, computing: &str) -> Vec<(String, f64)> {
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let mut parts = vec![
        (computing.to_owned(), profile.compute),
        ("waiting for data".to_owned(), most(&profile.data_wait_of)),
        ("other work of the training thread".to_owned(), most(&profile.rest_of)),
        ("ranks that take turns being late".to_owned(), profile.jitter),
    ];
    match profile.stage_count() {
        1 => parts.push(("a slow rank".to_owned(), most(&profile.compute_of) - profile.compute)),
        _ => {
            parts.push(("stages with unequal work".to_owned(), profile.imbalance()));
            parts.push(("the pipeline's bubble".to_owned(), (profile.bubble - profile.imbalance()).max(0.0)));
        }
    }
    let waits = profile.communication_shares.iter();
    parts.extend(waits.map(|(what, share)| {
        (format!("{what} that computing does not hide"), share * profile.communication)
    }));
    parts
}
