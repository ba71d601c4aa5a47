//! The permissions that routes require. Each route is declared together with its permission (`router/table.rs`), and
//! the access checks read nothing else.

use job::Role;

use super::view::View;

/// The permission that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    /// None. The route shows nothing of anyone's work.
    Nothing,
    /// Read jobs. Submitters can read only their own.
    Read,
    /// Read information about the server as a whole.
    ReadServer,
    Submit,
    /// Change jobs or work in their sandboxes.
    Change,
    Admin,
}

impl Permission {
    /// Whether a role has this permission, at least for some jobs.
    pub(crate) fn is_granted_to(self, role: Role) -> bool {
        match self {
            Self::Nothing | Self::Read => true,
            Self::ReadServer => role != Role::Submitter,
            Self::Submit | Self::Change => role != Role::Viewer,
            Self::Admin => role == Role::Admin,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Read => "read",
            Self::ReadServer => "read_server",
            Self::Submit => "submit",
            Self::Change => "change",
            Self::Admin => "admin",
        }
    }

    /// What the error message says that a rejected caller may not do.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Read => "read jobs",
            Self::ReadServer => "read data about the whole server",
            Self::Submit => "submit jobs",
            Self::Change => "change jobs or work in their sandboxes",
            Self::Admin => "administer the server",
        }
    }

    /// Also lets a shared link to this view read the route.
    pub(crate) fn shared_as(self, view: View) -> RouteAccess {
        RouteAccess::from(self).shared_as(view)
    }

    /// Records reads in the access log. Without this it records only changes and rejected requests.
    pub(crate) fn logged(self) -> RouteAccess {
        RouteAccess::from(self).logged()
    }

    /// Rejects everybody but the holder while a user has taken the sandbox over. A WebSocket route checks the gate
    /// for each message instead, because a takeover may begin while it is open.
    pub(crate) fn locked_by_takeover(self) -> RouteAccess {
        RouteAccess { locked_by_takeover: true, ..self.into() }
    }
}

/// Everything that is checked before the handler of a route runs.
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
