//! What a link is for.

/// What a link between two members of a group is for, as one of them sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LinkRole {
    /// Collectives, in both directions.
    Collective,
    /// What this rank sends to the other alone.
    Outbound,
    /// What the other sends to this rank alone.
    Inbound,
}

impl LinkRole {
    /// The same link, as the other rank sees it.
    pub(crate) fn at_peer(self) -> Self {
        match self {
            Self::Collective => Self::Collective,
            Self::Outbound => Self::Inbound,
            Self::Inbound => Self::Outbound,
        }
    }
}
