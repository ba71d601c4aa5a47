//! The routes of the API. Each one is declared together with the permission that it requires. There is no other way
//! to add one.

use std::sync::Arc;

use axum::handler::Handler;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get};
use utoipa::openapi::path::PathItem;
use utoipa::openapi::{RefOr, Schema};
use utoipa_axum::router::UtoipaMethodRouter;

use crate::access::{Access, RouteAccess, check, takeover_gate};
use crate::extract::AppState;

pub(crate) struct Routes {
    pub(crate) routes: Vec<Route>,
    /// The schemas that the routes' descriptions refer to.
    pub(crate) schemas: Vec<(String, RefOr<Schema>)>,
}

/// A path and those of its methods that require the same permission.
pub(crate) struct Route {
    pub(crate) path: String,
    pub(crate) access: RouteAccess,
    /// The entry in the OpenAPI document. `None` if the route is undocumented.
    pub(crate) description: Option<PathItem>,
    handlers: MethodRouter<AppState>,
}

impl Routes {
    pub(super) fn new() -> Self {
        Self { routes: Vec::new(), schemas: Vec::new() }
    }

    /// Adds a handler, given as `routes!(handler)`. Methods of one path that require different permissions are added
    /// separately.
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

    /// Adds a GET handler that the OpenAPI document does not list.
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

    pub(super) fn nest(mut self, prefix: &str, inner: Self) -> Self {
        self.schemas.extend(inner.schemas);
        self.routes.extend(
            inner.routes.into_iter().map(|route| Route { path: format!("{prefix}{}", route.path), ..route }),
        );
        self
    }

    /// Wraps every handler in the access checks. Unknown paths and methods pass through none of them.
    pub(super) fn into_router(self, access: &Arc<Access>) -> axum::Router<AppState> {
        self.routes.into_iter().fold(axum::Router::new(), |router, route| {
            let takeover = (access.orchestrator().clone(), route.access);
            let caller = (Arc::clone(access), route.access);
            let handlers = route
                .handlers
                .route_layer(from_fn_with_state(takeover, takeover_gate::guard))
                .route_layer(from_fn_with_state(caller, check));
            router.route(&route.path, handlers)
        })
    }
}
