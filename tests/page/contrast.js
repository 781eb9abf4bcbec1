// Returns every visible text whose contrast to its background is below WCAG AA: 4.5, or 3 for large
// text.
const luminance = ([r, g, b]) => {
  const linear = [r, g, b].map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgbaByColor = new Map();
const rgba = (color) => {
  if (!rgbaByColor.has(color)) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    rgbaByColor.set(color, [...canvas.getImageData(0, 0, 1, 1).data]);
  }
  return rgbaByColor.get(color);
};
const background = (element) => {
  for (let ancestor = element; ancestor; ancestor = ancestor.parentElement) {
    const color = rgba(getComputedStyle(ancestor).backgroundColor);
    if (color[3] === 255) return color;
  }
  return [255, 255, 255];
};
const pale = new Set();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let count = 0; walker.nextNode() && count < 1500; count += 1) {
  const element = walker.currentNode.parentElement;
  const text = walker.currentNode.textContent.trim();
  if (!text || !element.checkVisibility() || element.closest(".unseen, .skip, :disabled, .mark")) continue;
  const style = getComputedStyle(element);
  const [lighter, darker] = [luminance(rgba(style.color)), luminance(background(element))].sort((a, b) => b - a);
  const contrast = (lighter + 0.05) / (darker + 0.05);
  const size = parseFloat(style.fontSize);
  const isLarge = size >= 24 || (size >= 18.7 && Number(style.fontWeight) >= 700);
  if (contrast < (isLarge ? 3 : 4.5)) pale.add(`${text.slice(0, 40)}: ${contrast.toFixed(2)} (${style.color})`);
}
return [...pale].slice(0, 10);
