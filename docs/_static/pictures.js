// Every picture of a page leads to itself in its own size: on a phone it is drawn small.
document.querySelectorAll(".content img").forEach(image => {
    if (image.closest("a, .stills")) return;
    const link = Object.assign(document.createElement("a"), {href: image.src, title: "in its own size"});
    image.replaceWith(link);
    link.append(image);
});
