//! How many files and sockets a process may have open, and what a rank needs of them.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of a rank for each rank of its world at most: the control connection, on rank 0, and links of the world's
/// group and of one more that spans it.
const EACH: u64 = 3;

/// Other descriptors of a rank: those of its program, its logs, its listeners and its groups' event fds.
const BESIDES: u64 = 128;

/// Raises this process's limit of open files to the highest that it may set itself, for itself and for the processes that it
/// starts from now on. [`join`](crate::join()) calls it. Gives the limit; none where there is none.
pub fn raise_open_files() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
        return maximum;
    }
    current
}

/// How many open files a rank of a world of `world_size` ranks may need.
pub const fn open_files_of_a_rank(world_size: usize) -> u64 {
    BESIDES + EACH * world_size as u64
}

/// The largest world whose ranks may have `limit` open files.
pub const fn ranks_within_open_files(limit: u64) -> u64 {
    limit.saturating_sub(BESIDES) / EACH
}

/// What to do about a limit of open files that is too low.
pub const RAISE_OPEN_FILES: &str = "raise the hard limit: nofile in /etc/security/limits.conf, LimitNOFILE= of a \
                                    systemd service, docker run --ulimit nofile=N, DefaultLimitNOFILE of Slurm's nodes";

/// Whether the process, or the system, has no descriptors left.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error())).contains(&error.raw_os_error())
}

/// Describes an error; if there are no descriptors left, with the limit that was reached and what to do.
pub(crate) fn explained(error: &io::Error) -> String {
    if !is_out_of_files(error) {
        return error.to_string();
    }
    if error.raw_os_error() == Some(Errno::NFILE.raw_os_error()) {
        return format!("{error}: the system's limit on open files is reached (sysctl fs.file-max)");
    }
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or_else(|| "on open files".into(), |limit| format!("of {limit} open files"));
    format!(
        "{error}: this process has reached its limit {limit} (ulimit -n); a rank may need {BESIDES} and {EACH} for each \
         rank of its world: {RAISE_OPEN_FILES}"
    )
}

/// Why a limit is too low, if rank 0's connections to all others alone exceed it.
pub(crate) fn shortage(limit: Option<u64>, world_size: usize) -> Option<String> {
    let limit = limit.filter(|limit| *limit < world_size as u64 + BESIDES / 4)?;
    let need = open_files_of_a_rank(world_size);
    Some(format!(
        "this process may have {limit} files open (ulimit -Hn), but a rank of a world of {world_size} may need {need}: \
         {RAISE_OPEN_FILES}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_enough_for_the_ranks_that_it_is_said_to_be_enough_for() {
        for limit in [0, 1024, 4096, 1 << 20] {
            let ranks = ranks_within_open_files(limit);
            assert!(ranks == 0 || open_files_of_a_rank(ranks as usize) <= limit);
            assert!(open_files_of_a_rank(ranks as usize + 1) > limit);
        }
    }

    #[test]
    fn which_limit_is_reached_is_said() {
        let process = explained(&Errno::MFILE.into());
        assert!(process.contains("ulimit -n") && process.contains("LimitNOFILE"), "{process}");
        assert!(explained(&Errno::NFILE.into()).contains("fs.file-max"));
        assert_eq!(explained(&Errno::CONNREFUSED.into()), io::Error::from(Errno::CONNREFUSED).to_string());
        assert_eq!(shortage(Some(1024), 256), None);
        assert!(shortage(Some(256), 256).is_some_and(|text| text.contains("256") && text.contains("896")));
    }
}
