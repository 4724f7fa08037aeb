//! What a link is for.

/// Links for collectives between two ranks of a group on several hosts, which take turns: while one waits for what is on its way through a
/// network, the next ones send.
pub(crate) const COLLECTIVES_AT_ONCE: usize = 4;

/// The most members of a group whose collectives take turns. With more, a rank would need too many connections.
pub(crate) const MOST_TAKING_TURNS: usize = 64;

/// What a link between two members of a group is for, as one of them sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    /// Collectives, in both directions: those whose turn is that of this number.
    Collective(u8),
    /// What this rank sends to the other alone.
    Outbound,
    /// What the other sends to this rank alone.
    Inbound,
}

impl Channel {
    /// The same link, as the other rank sees it.
    pub(crate) fn at_peer(self) -> Self {
        match self {
            Self::Collective(number) => Self::Collective(number),
            Self::Outbound => Self::Inbound,
            Self::Inbound => Self::Outbound,
        }
    }
}
