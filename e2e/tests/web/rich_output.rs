//! Rich output of cells: images, tables, and hostile HTML.

use e2e::{Browser, Options, Server, default_images};
use serde_json::json;

use crate::accessibility::{assert_accessible, axe};
use crate::page_helpers::{open, shows};

const PICTURE: &str = "import matplotlib; matplotlib.use('agg')\nimport matplotlib.pyplot as plt\nfrom IPython.display import Image, display\n\
    plt.plot([1, 4, 9]); plt.savefig('p.png', dpi=40); display(Image('p.png'))";

const TABLE: &str = "from IPython.display import HTML, display\n\
    display(HTML('<table><thead><tr><th></th><th>name</th><th>size</th></tr></thead>\
    <tbody><tr><th>0</th><td>&lt;b&gt;moon&lt;/b&gt;</td><td>3474</td></tr></tbody></table>'))";

const HOSTILE: &str = "from IPython.display import HTML, display\n\
    display(HTML('<p>harmless words</p><img src=x onerror=\"top.document.title=1\"><script>top.document.title=\"owned\"; fetch(\"/v1/jobs\")</script><meta http-equiv=refresh content=\"0;url=https://example.org\">'))";

const SPOOF: &str = "from IPython.display import display\n\
    display({'image/png': {'digest': '../../../keys'}}, raw=True)";

const UPDATES: &str = "from IPython.display import display\n\
    bar = display('at 10', display_id=True)\nfor n in (50, 100): bar.update(f'at {n}')";

const DRAWING: &str = "from IPython.display import SVG, display\n\
    display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"60\" height=\"40\"><script>top.document.title=1</script><rect width=\"60\" height=\"40\" fill=\"teal\"/></svg>'))";

#[test]
fn cells_show_images_and_tables_and_hostile_html_is_harmless() {
    let server = Server::start_with(Options { images: Some(default_images()), ..Options::default() });
    let steps: Vec<_> = [PICTURE, TABLE, DRAWING, HOSTILE, SPOOF, UPDATES]
        .iter()
        .map(|code| json!({"tool": "python", "code": code}))
        .collect();
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    job.wait_for("complete");
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("the end is shown", &shows("Complete"));
    page.wait_for("the picture is one", "document.querySelector('.call .picture img')?.naturalWidth > 50");
    page.wait_for(
        "the table is one, and its cells are text",
        "document.querySelector('.table td')?.innerText === '<b>moon</b>' && document.querySelector('.table .number')?.innerText === '3474'",
    );
    page.wait_for(
        "the drawing is a picture, and runs nothing",
        "[...document.querySelectorAll('.call .picture img')].some(img => img.src.startsWith('data:image/svg+xml') && img.naturalWidth === 60)",
    );
    page.wait_for(
        "other HTML is in a frame that may do nothing",
        "document.querySelector('iframe[title=\"HTML output\"]')?.getAttribute('sandbox') === '' && document.querySelector('iframe[title=\"HTML output\"]').srcdoc.includes('harmless words')",
    );
    page.evaluate("document.querySelector('[data-scroller]').scrollTop = 1e9");
    page.wait_for(
        "what was updated stands there once, as it was at last",
        "(() => { const texts = [...document.querySelectorAll('.call .inside > pre:not([aria-label])')].map(p => p.innerText); \
         return texts.some(t => t.includes('at 100')) && !texts.some(t => t.includes('at 10\\'') || t.includes('at 50')); })()",
    );
    let asked = page.evaluate(
        "performance.getEntriesByType('resource').map(one => one.name).filter(name => name.includes('keys'))",
    );
    assert_eq!(asked, json!([]), "a job has made the page ask for another address");
    page.evaluate(&format!("{}; 0", axe()));
    assert_accessible(&mut page, "rich output");
    assert_eq!(page.evaluate("document.querySelectorAll('main script').length"), json!(0));
    assert!(!page.evaluate("document.title").as_str().unwrap().contains("owned"));
    assert!(page.evaluate("location.href").as_str().unwrap().contains(&job.id), "nothing has moved the page");
    page.assert_no_exceptions();
}
