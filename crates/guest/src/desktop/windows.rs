//! Windows: listing, focusing and closing them, based on the window manager's client list.

use protocol::{GuiError, WindowChoice, WindowInfo};
use x11rb::connection::Connection;
use x11rb::protocol::xproto::{AtomEnum, ClientMessageEvent, ConnectionExt, EventMask, Window};

use super::bad_input;
use super::display::{Display, lost, sent};

/// The most windows in a listing, and the most characters of a title.
const MAX_WINDOWS: u32 = 256;
const MAX_TITLE: usize = 200;
/// EWMH source indication 2: the request comes from a pager, that is, from direct user action.
const FROM_PAGER: u32 = 2;

impl Display {
    /// Lists the windows in the order in which they were opened.
    pub(super) fn windows(&mut self) -> Result<Vec<WindowInfo>, GuiError> {
        let active = self.numbers(self.root, self.names._NET_ACTIVE_WINDOW, 1)?;
        let listed = self.numbers(self.root, self.names._NET_CLIENT_LIST, MAX_WINDOWS)?;
        let mut windows = Vec::new();
        for window in listed {
            if let Some(info) = self.describe(window, active.first() == Some(&window))? {
                windows.push(info);
            }
        }
        Ok(windows)
    }

    /// Describes a window. `None` if it has closed meanwhile.
    fn describe(&self, window: Window, is_active: bool) -> Result<Option<WindowInfo>, GuiError> {
        let geometry = self.connection.get_geometry(window).map_err(|error| lost(&error))?;
        let place = self.connection.translate_coordinates(window, self.root, 0, 0);
        let place = place.map_err(|error| lost(&error))?;
        let title = self.title(window)?;
        let (Ok(geometry), Ok(place)) = (geometry.reply(), place.reply()) else { return Ok(None) };
        Ok(Some(WindowInfo {
            number: window,
            title,
            x: i32::from(place.dst_x),
            y: i32::from(place.dst_y),
            width: u32::from(geometry.width),
            height: u32::from(geometry.height),
            is_active,
        }))
    }

    fn title(&self, window: Window) -> Result<String, GuiError> {
        let longest = u32::try_from(MAX_TITLE).unwrap_or(200);
        let names = [(self.names._NET_WM_NAME, self.names.UTF8_STRING), (u32::from(AtomEnum::WM_NAME), 0u32)];
        for (name, kind) in names {
            let asked = self.connection.get_property(false, window, name, kind, 0, longest);
            if let Ok(property) = asked.map_err(|error| lost(&error))?.reply()
                && !property.value.is_empty()
            {
                let text = String::from_utf8_lossy(&property.value);
                return Ok(text.chars().filter(|letter| !letter.is_control()).take(MAX_TITLE).collect());
            }
        }
        Ok(String::new())
    }

    /// Finds the window that a caller means.
    pub(super) fn choose(&mut self, choice: &WindowChoice) -> Result<WindowInfo, GuiError> {
        let windows = self.windows()?;
        let found = find(&windows, choice).cloned();
        found.ok_or_else(|| {
            let titles: Vec<String> =
                windows.iter().map(|window| format!("{} `{}`", window.number, window.title)).collect();
            let there = if titles.is_empty() { "no window is open".to_owned() } else { titles.join(", ") };
            let wanted = match choice {
                WindowChoice::Number(number) => format!("with the number {number}"),
                WindowChoice::Title(title) => format!("with `{title}` in its title"),
            };
            bad_input(format!("there is no window {wanted}; there are: {there}"))
        })
    }

    pub(super) fn focus(&mut self, choice: &WindowChoice) -> Result<WindowInfo, GuiError> {
        let window = self.choose(choice)?;
        self.send_to_window_manager(window.number, self.names._NET_ACTIVE_WINDOW, [FROM_PAGER, 0, 0, 0, 0])?;
        Ok(window)
    }

    pub(super) fn close(&mut self, choice: &WindowChoice) -> Result<WindowInfo, GuiError> {
        let window = self.choose(choice)?;
        self.send_to_window_manager(window.number, self.names._NET_CLOSE_WINDOW, [0, FROM_PAGER, 0, 0, 0])?;
        Ok(window)
    }

    fn send_to_window_manager(&self, window: Window, what: u32, data: [u32; 5]) -> Result<(), GuiError> {
        let message = ClientMessageEvent::new(32, window, what, data);
        let listeners = EventMask::SUBSTRUCTURE_REDIRECT | EventMask::SUBSTRUCTURE_NOTIFY;
        sent(self.connection.send_event(false, self.root, listeners, message))?;
        self.connection.flush().map_err(|error| lost(&error))?;
        self.ping()
    }
}

/// Finds a window by number or title. An exact title match wins over a partial match, and a newer window over an
/// older one.
pub(super) fn find<'a>(windows: &'a [WindowInfo], choice: &WindowChoice) -> Option<&'a WindowInfo> {
    match choice {
        WindowChoice::Number(number) => windows.iter().find(|window| window.number == *number),
        WindowChoice::Title(title) => {
            let newest_first = || windows.iter().rev();
            newest_first()
                .find(|window| window.title == *title)
                .or_else(|| newest_first().find(|window| window.title.contains(title.as_str())))
                .or_else(|| {
                    let wanted = title.to_lowercase();
                    newest_first().find(|window| window.title.to_lowercase().contains(&wanted))
                })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(number: u32, title: &str) -> WindowInfo {
        WindowInfo { number, title: title.into(), x: 0, y: 0, width: 1, height: 1, is_active: false }
    }

    #[test]
    fn exact_title_match_wins_over_partial_match() {
        let windows = [window(1, "Terminal"), window(2, "Terminal two"), window(3, "Editor")];
        let by_title =
            |title: &str| find(&windows, &WindowChoice::Title(title.into())).map(|found| found.number);
        assert_eq!(by_title("Terminal"), Some(1));
        assert_eq!(by_title("Term"), Some(2));
        assert_eq!(by_title("edit"), Some(3));
        assert_eq!(by_title("Browser"), None);
        assert_eq!(find(&windows, &WindowChoice::Number(2)).map(|found| found.number), Some(2));
    }
}
