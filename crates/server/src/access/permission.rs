//! What a route requires of its callers. Each route is declared together with it (`router/table.rs`); the checks read nothing else.

use orchestrator::Role;

use super::share::View;

/// What a caller must be allowed to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Nothing: the route shows nothing of anybody's work.
    Nothing,
    /// Read jobs; submitters read their own.
    Read,
    /// Read what concerns the server as a whole.
    ReadServer,
    /// Submit jobs and create sandboxes.
    Submit,
    /// Change jobs, or work in their sandboxes.
    Change,
    /// Administer the server.
    Admin,
}

impl Permission {
    /// Whether a role has it, for some jobs at least.
    pub(crate) fn is_granted_to(self, role: Role) -> bool {
        match self {
            Self::Nothing | Self::Read => true,
            Self::ReadServer => role != Role::Submitter,
            Self::Submit | Self::Change => role != Role::Viewer,
            Self::Admin => role == Role::Admin,
        }
    }

    /// The name in the OpenAPI document.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Read => "look",
            Self::ReadServer => "survey",
            Self::Submit => "submit",
            Self::Change => "change",
            Self::Admin => "govern",
        }
    }

    /// What a refused caller may not do.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Read => "look at jobs",
            Self::ReadServer => "look at the server as a whole",
            Self::Submit => "hand in jobs",
            Self::Change => "change a job or work in its sandbox",
            Self::Admin => "look after keys",
        }
    }

    /// A link to this view opens the route, too, for reading.
    pub(crate) fn shared_as(self, view: View) -> RouteAccess {
        RouteAccess::from(self).shared_as(view)
    }

    /// The access log records who reads here; without this it records only changes and refusals.
    pub(crate) fn logged(self) -> RouteAccess {
        RouteAccess::from(self).logged()
    }

    /// While somebody has taken the sandbox over, the route refuses everybody else. A WebSocket asks the gate for each message
    /// instead, because a takeover may begin while it is open.
    pub(crate) fn locked_by_takeover(self) -> RouteAccess {
        RouteAccess { locked_by_takeover: true, ..self.into() }
    }
}

/// All that is checked before the handler of a route runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RouteAccess {
    pub(crate) permission: Permission,
    pub(crate) shared_as: Option<View>,
    pub(crate) logged: bool,
    pub(crate) locked_by_takeover: bool,
}

impl From<Permission> for RouteAccess {
    fn from(permission: Permission) -> Self {
        Self { permission, shared_as: None, logged: false, locked_by_takeover: false }
    }
}

impl RouteAccess {
    /// See [`Permission::shared_as`].
    pub(crate) fn shared_as(self, view: View) -> Self {
        Self { shared_as: Some(view), ..self }
    }

    /// See [`Permission::logged`].
    pub(crate) fn logged(self) -> Self {
        Self { logged: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_viewer_only_reads_and_only_admins_administer() {
        for role in Role::ALL {
            assert!(Permission::Nothing.is_granted_to(role) && Permission::Read.is_granted_to(role));
            assert_eq!(Permission::Submit.is_granted_to(role), role != Role::Viewer);
            assert_eq!(Permission::Change.is_granted_to(role), role != Role::Viewer);
            assert_eq!(Permission::ReadServer.is_granted_to(role), role != Role::Submitter);
            assert_eq!(Permission::Admin.is_granted_to(role), role == Role::Admin);
        }
    }
}
