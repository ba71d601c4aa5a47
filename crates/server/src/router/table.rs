//! Every route of the API with the permission that it requires.

use utoipa_axum::routes;

use super::routes::Routes;
use crate::access::Permission::{Admin, Change, Nothing, Read, ReadServer, Submit};
use crate::access::View;
use crate::routes::{
    app, audit, basic, code, context, control, demo, desktop, downloads, events, exec, exec_stream, files,
    health, host, jobs, keys, login, metrics, models, network, pages, ports, sandboxes, shares, stats,
    terminal,
};

/// All routes, in the order of the OpenAPI document.
pub(crate) fn all() -> Routes {
    let documented = Routes::new()
        .add(Submit, routes!(basic::schedule))
        .add(Submit, routes!(basic::submit))
        .add(Read, routes!(basic::status))
        .add(Read, routes!(basic::status_by_query))
        .add(Read.shared_as(View::Output).logged(), routes!(basic::output_zip))
        .add(Submit, routes!(jobs::create))
        .add(Read, routes!(jobs::list))
        .add(Read, routes!(jobs::get))
        .add(Change, routes!(jobs::delete))
        .add(Submit, routes!(demo::start))
        .add(Change, routes!(jobs::start))
        .add(Change, routes!(jobs::cancel))
        .add(Submit, routes!(jobs::retry))
        .add(Read.logged(), routes!(jobs::log))
        .add(Read, routes!(jobs::artifacts))
        .add(Read.logged(), routes!(downloads::download))
        .add(Change, routes!(control::message))
        .add(Change, routes!(control::pause))
        .add(Change, routes!(control::resume))
        .add(Change, routes!(control::extend))
        .add(Change, routes!(control::takeover))
        .add(Change, routes!(control::handback))
        .add(Read, routes!(control::requests))
        .add(Change, routes!(control::answer))
        .add(Read.logged(), routes!(context::context))
        .nest("/v1/jobs/{id}", inside())
        .add(Submit, routes!(sandboxes::create))
        .add(Read, routes!(sandboxes::list))
        .add(Read, routes!(sandboxes::get))
        .add(Change, routes!(sandboxes::delete))
        .add(Change, routes!(sandboxes::extend))
        .nest("/v1/sandboxes/{id}", inside())
        .add(Read, routes!(models::list))
        .add(Admin, routes!(models::choose, models::forget))
        .add(Admin, routes!(models::test_model))
        .add(Read.logged(), routes!(files::read_start))
        .add(Read, routes!(host::images))
        .add(ReadServer, routes!(host::doctor))
        .add(Read, routes!(host::defaults))
        .add(Read, routes!(host::usage))
        .add(Admin, routes!(keys::add, keys::list))
        .add(Admin, routes!(keys::revoke))
        .add(Admin, routes!(keys::access_log))
        .add(Nothing, routes!(login::begin))
        .add(Nothing, routes!(login::finish))
        .add(Nothing, routes!(shares::open))
        .add(Nothing, routes!(keys::session, keys::log_in, keys::log_out))
        .add(Nothing, routes!(health::healthz))
        .add(Nothing, routes!(health::readyz))
        .add(ReadServer, routes!(metrics::metrics))
        .add(Nothing, routes!(pages::document))
        .add(Nothing, routes!(pages::docs))
        .add(Nothing, routes!(app::index));
    pages::ASSETS
        .iter()
        .fold(documented, |routes, asset| {
            routes.add_undocumented(Nothing, asset.path, move || async move { asset.show() })
        })
        .add_undocumented(Nothing, "/app/{name}", app::asset)
}

/// The routes that jobs and sandboxes share. The prefix of the path tells the two apart.
fn inside() -> Routes {
    Routes::new()
        .add(Read.shared_as(View::Events).logged(), routes!(events::events))
        .add(Change.locked_by_takeover(), routes!(exec::exec))
        .add(Change, routes!(exec_stream::exec_stream))
        .add(Change.locked_by_takeover(), routes!(code::run))
        .add(Read, routes!(code::list))
        .add(Change.locked_by_takeover(), routes!(code::interrupt))
        .add(Change.locked_by_takeover(), routes!(code::restart))
        .add(Change.shared_as(View::Terminal), routes!(terminal::terminal))
        .add(Read, routes!(ports::list))
        .add(Change, routes!(ports::connect))
        .add(Change, routes!(shares::share))
        .add(Read, routes!(shares::list))
        .add(Change, routes!(shares::revoke))
        .add(Read, routes!(stats::stats))
        .add(Read, routes!(stats::history))
        .add(Read.logged(), routes!(network::network))
        .add(Read, routes!(audit::audit))
        .add(Read, routes!(audit::heads))
        .add(Read.logged(), routes!(audit::files))
        .add(Read.shared_as(View::Desktop), routes!(desktop::page))
        .add(Read.shared_as(View::Desktop), routes!(desktop::state))
        // A caller who may only read sees the screen but cannot send input.
        .add(Read.shared_as(View::Desktop), routes!(desktop::socket))
        .add(Read.shared_as(View::Desktop).logged(), routes!(desktop::screenshot))
        .add(Read.logged(), routes!(desktop::picture))
        .add(Change.locked_by_takeover(), routes!(desktop::input))
        .add(Read.shared_as(View::Files), routes!(files::list_root))
        .add(Read.shared_as(View::Files).logged(), routes!(files::read))
        .add(Change.locked_by_takeover(), routes!(files::write, files::delete, files::relocate))
        // The same listing, for a path that ends with a slash.
        .add_undocumented(Read.shared_as(View::Files), "/files/", files::list_root)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::access::RouteAccess;

    /// Methods and paths of the routes for which `has_it` returns true.
    fn routes_with(has_it: impl Fn(&RouteAccess) -> bool) -> BTreeSet<String> {
        let routes = all().routes.into_iter().filter(|route| has_it(&route.access));
        let methods = routes.flat_map(|route| {
            let described = route.description.unwrap_or_default();
            let methods = [
                ("POST", described.post.is_some()),
                ("PUT", described.put.is_some()),
                ("DELETE", described.delete.is_some()),
            ];
            let mut methods: Vec<_> =
                methods.into_iter().filter_map(|(name, is)| is.then_some(name)).collect();
            if described.get.is_some() || methods.is_empty() {
                methods.push("GET");
            }
            methods.into_iter().map(move |method| format!("{method} {}", route.path)).collect::<Vec<_>>()
        });
        methods.collect()
    }

    /// Each route twice: below jobs and below sandboxes.
    fn below_both(below: &[&str]) -> BTreeSet<String> {
        let split = below.iter().map(|line| line.split_once(' ').unwrap());
        split
            .flat_map(|(method, path)| {
                ["jobs", "sandboxes"].map(|kind| format!("{method} /v1/{kind}/{{id}}{path}"))
            })
            .collect()
    }

    #[test]
    fn link_opens_only_the_routes_of_its_view() {
        let views: [(View, &[&str]); 4] = [
            (
                View::Desktop,
                &["GET /desktop", "GET /desktop/state", "GET /desktop/socket", "GET /screenshot"],
            ),
            (View::Terminal, &["GET /terminal"]),
            (View::Files, &["GET /files", "GET /files/", "GET /files/{*path}"]),
            (View::Events, &["GET /events"]),
        ];
        for (view, routes) in views {
            assert_eq!(routes_with(|access| access.shared_as == Some(view)), below_both(routes), "{view}");
        }
        let output = routes_with(|access| access.shared_as == Some(View::Output));
        assert_eq!(output, BTreeSet::from(["GET /jobs/{id}/output.zip".to_owned()]));
        // Notebooks and ports are served on separate origins.
        let elsewhere = |view| matches!(view, View::Notebook | View::Port(_));
        assert!(routes_with(|access| access.shared_as.is_some_and(elsewhere)).is_empty());
    }

    #[test]
    fn reads_of_job_content_are_logged() {
        let mut expected = below_both(&[
            "GET /files/{*path}",
            "GET /events",
            "GET /screenshot",
            "GET /pictures/{digest}",
            "GET /audit/files",
            "GET /network",
        ]);
        expected.extend(
            [
                "GET /jobs/{id}/output.zip",
                "GET /v1/jobs/{id}/downloads/{*name}",
                "GET /v1/jobs/{id}/start/{*path}",
                "GET /v1/jobs/{id}/log",
                "GET /v1/jobs/{id}/context",
            ]
            .map(str::to_owned),
        );
        assert_eq!(routes_with(|access| access.logged), expected);
    }

    #[test]
    fn takeover_locks_routes_that_change_a_sandbox() {
        let expected = below_both(&[
            "POST /exec",
            "POST /code",
            "POST /kernels/{name}/interrupt",
            "POST /kernels/{name}/restart",
            "POST /input",
            "PUT /files/{*path}",
            "POST /files/{*path}",
            "DELETE /files/{*path}",
        ]);
        assert_eq!(routes_with(|access| access.locked_by_takeover), expected);
    }
}
