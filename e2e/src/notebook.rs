//! Uses JupyterLab as a person would.

use std::time::Duration;

use serde_json::{Value, json};

use crate::browser::Page;

/// Types a cell into the open notebook, runs it, and waits until its output contains `printed`.
pub fn run_cell(page: &mut Page, code: &str, printed: &str) {
    let is_there = "document.querySelector('.jp-Notebook .jp-Cell .cm-content') !== null";
    let last_cell_position = "(() => { const cell = [...document.querySelectorAll('.jp-Notebook .jp-Cell .cm-content')].pop(); \
        if (!cell) return null; cell.scrollIntoView({block: 'center'}); const box = cell.getBoundingClientRect(); \
        return {x: box.x + Math.min(box.width, 100) / 2, y: box.y + box.height / 2}; })()";
    page.wait_for("the kernel is connected", "document.body.innerText.includes('Python 3 (ipykernel)')");
    let typed = format!(
        "[...document.querySelectorAll('.jp-Notebook .jp-Cell .cm-content')]\
            .some(cell => cell.innerText.trim() === {code:?})"
    );
    // Text typed into a page that is about to navigate away is lost; a person would notice and type again.
    for _ in 0..8 {
        page.wait_for("a cell can be typed into", is_there);
        // Click instead of `focus()`: inside a frame, `focus()` moves the focus within the frame but not into it.
        if let Some(place) = page.evaluate_unless_leaving(last_cell_position).filter(Value::is_object) {
            page.click_at(&place);
            page.type_text(code);
        }
        if page.becomes_true_within(Duration::from_secs(8), &typed) {
            break;
        }
    }
    let shows = format!(
        "[...document.querySelectorAll('.jp-OutputArea-output')].some(output => output.innerText.includes('{printed}'))"
    );
    let again = format!(
        "(() => {{ const cell = [...document.querySelectorAll('.jp-Notebook .jp-Cell .cm-content')]\
            .find(cell => cell.innerText.trim() === {code:?}); if (cell) cell.focus(); return true; }})()"
    );
    // JupyterLab drops a run request until the notebook has a kernel; a person would press the keys again.
    for _ in 0..8 {
        page.evaluate_unless_leaving(&again);
        page.press_shift_enter();
        if page.becomes_true_within(Duration::from_secs(8), &shows) {
            return;
        }
    }
    page.wait_for("the cell has printed", &shows);
}

/// A notebook with one empty cell.
#[must_use]
pub fn empty_notebook() -> Value {
    json!({
        "cells": [{"cell_type": "code", "id": "a", "metadata": {}, "source": "", "outputs": [], "execution_count": null}],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4, "nbformat_minor": 5
    })
}
