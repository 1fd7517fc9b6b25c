// Turns the slides: right, space or a click goes on and shows a slide's answers one by one; left goes back; a number and
// Enter lead to this slide. The address ends with the slide's number, so a reload stays there.
const slides = [...document.querySelectorAll("section")];
let at = 0, digits = "";

function show(i) {
    at = Math.max(0, Math.min(i, slides.length - 1));
    slides.forEach((slide, n) => slide.classList.toggle("shown", n == at));
    history.replaceState(null, "", "#" + (at + 1));
}

function on() {
    const hidden = slides[at].querySelector(".answer:not(.told)");
    if (hidden)
        hidden.classList.add("told");
    else
        show(at + 1);
}

function fit() {
    document.body.style.setProperty("--scale", Math.min(innerWidth / 1280, innerHeight / 720));
}

document.addEventListener("keydown", event => {
    const act = {ArrowRight: on, PageDown: on, " ": on, ArrowLeft: () => show(at - 1), PageUp: () => show(at - 1),
                 Home: () => show(0), End: () => show(slides.length - 1),
                 Enter: () => show(digits ? digits - 1 : at)}[event.key];
    if (act) {
        act();
        event.preventDefault();
    }
    digits = /^\d$/.test(event.key) ? digits + event.key : "";
});
document.addEventListener("click", on);
addEventListener("resize", fit);
fit();
const addressed = () => show((parseInt(location.hash.slice(1)) || 1) - 1);
addEventListener("hashchange", addressed);
addressed();
