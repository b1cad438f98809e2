// A widget without a kernel: pictures rendered beforehand (tools/make_stills.py), and controls that choose among them.
// A control that is moved takes its place; the others follow to the nearest setting that has been rendered.

function element(name, parent, properties = {}) {
    return parent.appendChild(Object.assign(document.createElement(name), properties));
}

function play(script) {
    const {controls, start, walk, stills} = JSON.parse(script.textContent);
    const box = element("div", script.parentNode, {className: "stills"});
    const row = element("div", box);
    const inputs = controls.map(({name, values}, i) => {
        const label = element("label", row, {textContent: `${name} `});
        const few = values.some(value => isNaN(value));
        const input = element(few ? "select" : "input", label, {disabled: values.length < 2});
        if (few) values.forEach((value, place) => element("option", input, {value: place, textContent: value}));
        else Object.assign(input, {type: "range", min: 0, max: values.length - 1, step: 1});
        const shown = element("output", label, {hidden: few});
        input.addEventListener("input", () => show(nearest(i, Number(input.value))));
        return {input, shown, values};
    });
    if (walk) {
        const next = element("button", row, {textContent: "next"});
        next.addEventListener("click", () => show((now + 1) % stills.length));
    }
    const words = element("div", box, {className: "words"});
    const image = element("img", box, {alt: "the widget's picture"});
    let now;

    function nearest(moved, place) {  // among the stills that have the moved control nearest to its place
        const away = stills.map(({at}) => at.reduce((sum, to, i) =>
            sum + (i === moved ? 1000 * Math.abs(to - place) : Math.abs(to - stills[now].at[i])), 0));
        return away.indexOf(Math.min(...away));
    }

    function show(index) {
        now = index;
        inputs.forEach(({input, shown, values}, i) => {
            input.value = stills[index].at[i];
            shown.textContent = values[stills[index].at[i]];
        });
        words.innerHTML = stills[index].words;
        words.style.minHeight = `${words.offsetHeight}px`;  // as tall as it has been: the page does not jump back
        image.src = `data:image/webp;base64,${stills[index].picture}`;
    }

    show(start);
}

document.querySelectorAll("script.stills").forEach(play);
