//! Whole tasks: a bug in a small repository is found and fixed, with its tests as acceptance commands.

use serde_json::json;

use crate::scripted::{Scripted, call, finish, finish_plan, shell};

const BROKEN: &str =
    "def median(values):\n    ordered = sorted(values)\n    return ordered[len(ordered) // 2]\n";
const TESTS: &str = "\
import unittest

from stats import median


class MedianTest(unittest.TestCase):
    def test_odd(self):
        self.assertEqual(median([3, 1, 2]), 2)

    def test_even(self):
        self.assertEqual(median([4, 1, 2, 3]), 2.5)


if __name__ == '__main__':
    unittest.main()
";

#[test]
fn agent_fixes_a_python_bug_with_acceptance_tests() {
    let scripted = Scripted::turns(vec![
        call("plan", json!({"items": ["see the tests fail", "fix median", "see them pass"]})),
        call("list_files", json!({})),
        shell("python3 -m unittest -q 2>&1"),
        call("read_file", json!({"path": "stats.py"})),
        // Too early: the acceptance commands fail.
        finish_plan(&["see the tests fail", "fix median", "see them pass"]),
        call(
            "edit_file",
            json!({
                "path": "stats.py",
                "old": "    return ordered[len(ordered) // 2]\n",
                "new": "    middle = len(ordered) // 2\n    if len(ordered) % 2:\n        return ordered[middle]\n    return (ordered[middle - 1] + ordered[middle]) / 2\n"
            }),
        ),
        shell("python3 -m unittest -q 2>&1"),
        finish(),
    ]);
    let body = json!({"task": "median is wrong for even lists; fix it", "acceptance": ["python3 -m unittest -q"], "start": false});
    let draft = scripted.server.post("/v1/jobs", &body).expect(202).json();
    let job = scripted.server.job(draft["job_id"].as_str().unwrap());
    job.put_file("stats.py", BROKEN).expect(200);
    job.put_file("test_stats.py", TESTS).expect(200);
    job.post("start", &json!({})).expect(202);
    job.wait_for("complete");
    assert!(job.output().text("stats.py").contains("ordered[middle - 1]"));
    let refused = scripted.model.requests()[5].body.to_string();
    assert!(
        refused.contains("not finished yet: the acceptance command `python3 -m unittest -q` fails"),
        "{refused}"
    );
    assert!(refused.contains("AssertionError: 3 != 2.5"), "{refused}");
}

#[test]
fn cloning_a_repository_obeys_the_egress_policy() {
    let scripted = Scripted::turns(vec![finish()]);
    let body = json!({"task": "look", "git": {"url": "https://example.invalid/x.git"}, "egress": "off"});
    let job = scripted.schedule(&body);
    let status = job.wait_for_failure("workspace_source_failed");
    assert!(
        status["reason"].as_str().unwrap().contains("cloning https://example.invalid/x.git"),
        "{status:#}"
    );
}
