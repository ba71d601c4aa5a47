//! The routes of the API. Each is declared together with what it requires of its callers: there is no other way to add one.

use std::sync::Arc;

use axum::handler::Handler;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get};
use utoipa::openapi::path::PathItem;
use utoipa::openapi::{RefOr, Schema};
use utoipa_axum::router::UtoipaMethodRouter;

use crate::access::{Access, RouteAccess, check};
use crate::extract::AppState;
use crate::hold;

/// Routes with their permissions.
pub(crate) struct Routes {
    pub(crate) routes: Vec<Route>,
    /// What their descriptions refer to.
    pub(crate) schemas: Vec<(String, RefOr<Schema>)>,
}

/// One path, with the methods that require the same.
pub(crate) struct Route {
    pub(crate) path: String,
    pub(crate) access: RouteAccess,
    /// For the OpenAPI document; `None` if it does not have the route.
    pub(crate) description: Option<PathItem>,
    handlers: MethodRouter<AppState>,
}

impl Routes {
    pub(super) fn new() -> Self {
        Self { routes: Vec::new(), schemas: Vec::new() }
    }

    /// Adds a handler, given as `routes!(handler)`. Methods of one path that require different things are added one by one.
    pub(super) fn add(
        mut self,
        access: impl Into<RouteAccess>,
        (schemas, described, handlers): UtoipaMethodRouter<AppState>,
    ) -> Self {
        let access = access.into();
        self.schemas.extend(schemas);
        self.routes.extend(described.paths.into_iter().map(|(path, description)| {
            let handlers = handlers.clone();
            Route { path, access, description: Some(description), handlers }
        }));
        self
    }

    /// Adds a handler of GET that the OpenAPI document does not have.
    pub(super) fn add_undocumented<T: 'static>(
        mut self,
        access: impl Into<RouteAccess>,
        path: &str,
        handler: impl Handler<T, AppState>,
    ) -> Self {
        self.routes.push(Route {
            path: path.to_owned(),
            access: access.into(),
            description: None,
            handlers: get(handler),
        });
        self
    }

    /// Adds routes below a path.
    pub(super) fn nest(mut self, prefix: &str, inner: Self) -> Self {
        self.schemas.extend(inner.schemas);
        self.routes.extend(
            inner.routes.into_iter().map(|route| Route { path: format!("{prefix}{}", route.path), ..route }),
        );
        self
    }

    /// Puts the checks around every handler. Methods and paths that are not there pass none.
    pub(super) fn into_router(self, access: &Arc<Access>) -> axum::Router<AppState> {
        self.routes.into_iter().fold(axum::Router::new(), |router, route| {
            let takeover = (access.orchestrator().clone(), route.access);
            let caller = (Arc::clone(access), route.access);
            let handlers = route
                .handlers
                .route_layer(from_fn_with_state(takeover, hold::guard))
                .route_layer(from_fn_with_state(caller, check));
            router.route(&route.path, handlers)
        })
    }
}
