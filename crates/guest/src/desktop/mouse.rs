//! The mouse: moving, clicking, dragging and scrolling, through the XTEST extension.

use std::thread::sleep;
use std::time::Duration;

use protocol::{GuiError, Modifier, MouseButton};
use x11rb::protocol::xproto::{
    BUTTON_PRESS_EVENT, BUTTON_RELEASE_EVENT, KEY_PRESS_EVENT, KEY_RELEASE_EVENT, MOTION_NOTIFY_EVENT,
};
use x11rb::protocol::xtest::ConnectionExt as _;

use super::bad_input;
use super::display::{Display, lost, sent};

/// Pauses between the two clicks of a double click, and between the points of a drag.
const CLICK_PAUSE: Duration = Duration::from_millis(40);
const DRAG_PAUSE: Duration = Duration::from_millis(8);
/// Number of pointer movements in a drag.
const DRAG_POINTS: i32 = 12;
/// The most wheel clicks in one action.
const MAX_SCROLL: i32 = 200;
/// Buttons that stand for the wheel: down and up, then right and left.
const WHEEL: [(u8, u8); 2] = [(5, 4), (7, 6)];

/// A position on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    x: i16,
    y: i16,
}

impl Display {
    /// Checks that a position is on the screen.
    pub(super) fn point(&self, x: i32, y: i32) -> Result<Point, GuiError> {
        if x < 0 || y < 0 || x >= i32::from(self.width) || y >= i32::from(self.height) {
            return Err(bad_input(format!(
                "{x},{y} is off the screen, which has {}x{} pixels: x is 0 to {}, y is 0 to {}",
                self.width,
                self.height,
                self.width - 1,
                self.height - 1
            )));
        }
        Ok(Point { x: i16::try_from(x).unwrap_or(0), y: i16::try_from(y).unwrap_or(0) })
    }

    /// The position of an action, if it has one.
    pub(super) fn position(&self, x: Option<i32>, y: Option<i32>) -> Result<Option<Point>, GuiError> {
        match (x, y) {
            (Some(x), Some(y)) => self.point(x, y).map(Some),
            (None, None) => Ok(None),
            _ => Err(bad_input("`x` and `y` go together: give both or neither")),
        }
    }

    pub(super) fn fake(&self, kind: u8, detail: u8, at: Point) -> Result<(), GuiError> {
        sent(self.connection.xtest_fake_input(kind, detail, 0, self.root, at.x, at.y, 0))
    }

    pub(super) fn press_key(&self, code: u8) -> Result<(), GuiError> {
        self.fake(KEY_PRESS_EVENT, code, Point { x: 0, y: 0 })
    }

    pub(super) fn release_key(&self, code: u8) -> Result<(), GuiError> {
        self.fake(KEY_RELEASE_EVENT, code, Point { x: 0, y: 0 })
    }

    pub(super) fn move_to(&mut self, point: Point) -> Result<(), GuiError> {
        self.fake(MOTION_NOTIFY_EVENT, 0, point)?;
        self.ping()
    }

    /// Clicks `times` times at `position`, or at the current position.
    pub(super) fn click(
        &mut self,
        position: Option<Point>,
        button: MouseButton,
        modifiers: &[Modifier],
        times: u32,
    ) -> Result<(), GuiError> {
        if let Some(point) = position {
            self.move_to(point)?;
        }
        let held = self.modifier_codes(modifiers)?;
        for code in &held {
            self.press_key(*code)?;
        }
        for time in 0..times {
            if time > 0 {
                self.ping()?;
                sleep(CLICK_PAUSE);
            }
            self.button(BUTTON_PRESS_EVENT, number(button))?;
            self.button(BUTTON_RELEASE_EVENT, number(button))?;
        }
        for code in held.iter().rev() {
            self.release_key(*code)?;
        }
        self.ping()
    }

    fn button(&self, kind: u8, number: u8) -> Result<(), GuiError> {
        self.fake(kind, number, Point { x: 0, y: 0 })
    }

    /// Presses the button at one position and releases it at another, moving through intermediate points that
    /// programs can follow.
    pub(super) fn drag(&mut self, from: Point, to: Point, button: MouseButton) -> Result<(), GuiError> {
        self.move_to(from)?;
        self.button(BUTTON_PRESS_EVENT, number(button))?;
        for step in 1..=DRAG_POINTS {
            sleep(DRAG_PAUSE);
            let between = |one: i16, other: i16| {
                let way = i32::from(other) - i32::from(one);
                i16::try_from(i32::from(one) + way * step / DRAG_POINTS).unwrap_or(other)
            };
            self.move_to(Point { x: between(from.x, to.x), y: between(from.y, to.y) })?;
        }
        self.button(BUTTON_RELEASE_EVENT, number(button))?;
        self.ping()
    }

    pub(super) fn scroll(&mut self, position: Option<Point>, down: i32, right: i32) -> Result<(), GuiError> {
        if down == 0 && right == 0 {
            return Err(bad_input(
                "give `down` or `right`: how many clicks of the wheel, negative for the other way",
            ));
        }
        if down.abs() > MAX_SCROLL || right.abs() > MAX_SCROLL {
            return Err(bad_input(format!("at most {MAX_SCROLL} clicks of the wheel at once")));
        }
        if let Some(point) = position {
            self.move_to(point)?;
        }
        for (amount, (forward, back)) in [down, right].into_iter().zip(WHEEL) {
            let wheel = if amount > 0 { forward } else { back };
            for _ in 0..amount.abs() {
                self.button(BUTTON_PRESS_EVENT, wheel)?;
                self.button(BUTTON_RELEASE_EVENT, wheel)?;
            }
        }
        self.ping()
    }

    /// The key codes of modifiers.
    fn modifier_codes(&self, modifiers: &[Modifier]) -> Result<Vec<u8>, GuiError> {
        const CTRL: u32 = 0xffe3;
        const SHIFT: u32 = 0xffe1;
        const ALT: u32 = 0xffe9;
        const SUPER: u32 = 0xffeb;
        let mapping = self.mapping()?;
        let symbols = modifiers.iter().map(|modifier| match modifier {
            Modifier::Ctrl => CTRL,
            Modifier::Shift => SHIFT,
            Modifier::Alt => ALT,
            Modifier::Super => SUPER,
        });
        symbols
            .map(|symbol| {
                let found = mapping.find(symbol).map(|key| key.code);
                found.ok_or_else(|| lost("its keyboard has no such modifier"))
            })
            .collect()
    }
}

fn number(button: MouseButton) -> u8 {
    match button {
        MouseButton::Left => 1,
        MouseButton::Middle => 2,
        MouseButton::Right => 3,
    }
}
